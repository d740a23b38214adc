"""Pretrain an encoder on raw text; see electra_albert/apps/pretrain.py."""

from electra_albert.apps.command_line import run_app
from electra_albert.apps.pretrain import main

if __name__ == "__main__":
    raise SystemExit(run_app(main))
