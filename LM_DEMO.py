"""Fill in masks and rewrite text with a pretrained generator; the same as `electra-albert demo`."""

import sys

from electra_albert.cli import run

if __name__ == "__main__":
    sys.exit(run(["demo", *sys.argv[1:]]))
