"""`python -m electra_albert COMMAND`: the same as the console command."""

import sys

from electra_albert.cli import run

sys.exit(run())
