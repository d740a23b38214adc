"""Fine-tune an encoder on a task; the same as `electra-albert finetune`."""

import sys

from electra_albert.cli import run

if __name__ == "__main__":
    sys.exit(run(["finetune", *sys.argv[1:]]))
