"""Fine-tune an encoder on a task; see electra_albert/apps/finetune.py."""

from electra_albert.apps.command_line import run_app
from electra_albert.apps.finetune import main

if __name__ == "__main__":
    raise SystemExit(run_app(main))
