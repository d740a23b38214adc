"""Pretrain an encoder on raw text; the same as `electra-albert pretrain`."""

import sys

from electra_albert.cli import run

if __name__ == "__main__":
    sys.exit(run(["pretrain", *sys.argv[1:]]))
