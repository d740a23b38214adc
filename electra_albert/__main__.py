"""`python -m electra_albert COMMAND`: the console command without its script."""

import sys

from electra_albert.cli import run

sys.exit(run())
