"""`python -m electra_albert COMMAND`: the console command where its script is not on the path."""

import sys

from electra_albert.cli import run

sys.exit(run())
