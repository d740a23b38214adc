"""Fill in masks and rewrite text with a pretrained generator; see electra_albert/apps/demo.py."""

from electra_albert.apps.command_line import run_app
from electra_albert.apps.demo import main

if __name__ == "__main__":
    raise SystemExit(run_app(main))
