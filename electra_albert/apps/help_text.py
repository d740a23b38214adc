"""Help on the command line: a page with examples by --help, every option by --help-all."""

from __future__ import annotations

import argparse
import copy
import re
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

ALL_OPTIONS = "--help-all"
_PRINT_CONFIG = "--print_config"
_EXIT_CODES = """0 done, 1 a bug, 2 options and paths, 3 data, 4 a checkpoint, tokenizer or run folder,
5 training diverged, 75 stopped by a signal after saving: the same command resumes"""


class ShortHelp(NamedTuple):
    """What --help shows of a command with many options."""

    options: tuple[str, ...]
    examples: str  # lines of `command  # what it does`
    docs: str


class _ShortFormatter(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """Keeps the lines of a text, shows the default of an option."""


def plain_formatter() -> type[Any]:
    """A formatter that keeps the lines of a text and, of what the library tells of an option, only its default."""
    from jsonargparse import DefaultHelpFormatter

    class PlainFormatter(DefaultHelpFormatter):
        def _get_help_string(self, action: Any) -> str:
            text = re.sub(r"type: %\(type\)s(, )?", "", super()._get_help_string(action) or "")
            if action.default is None:
                text = text.replace("default: %(default)s", "")
            return text.removesuffix(" ()")

        def _fill_text(self, text: str, width: int, indent: str) -> str:
            if "\n" not in text:
                return super()._fill_text(text, width, indent)
            return "\n".join(indent + line for line in text.splitlines())

    return PlainFormatter


def add_config(parser: ArgumentParser, example: str) -> None:
    """Add --config, and --print_config in our words."""
    parser.add_argument("--config", action="config", help=f"A YAML file of these options, such as {example}.")
    for action in parser._actions:
        if _PRINT_CONFIG in action.option_strings:
            action.help, action.metavar = "Print all settings as YAML, which --config takes, and stop.", "\b"


def format_short_help(parser: ArgumentParser, short: ShortHelp) -> str:
    """The purpose, the options that most people use by the first sentence of their help, examples and exit codes."""
    formatter = _ShortFormatter(parser.prog)
    formatter.add_usage(parser.usage, [], [])
    formatter.add_text(parser.description)
    formatter.start_section(f"options used most, of all that {ALL_OPTIONS} shows")
    known = {name: action for action in parser._actions for name in action.option_strings}
    for name in short.options:
        action = copy.copy(known[f"--{name}"])
        action.help = re.split(r"(?<=\.)\s", action.help)[0]
        action.default = argparse.SUPPRESS if action.default in (None, False) else action.default
        if action.metavar is None and not action.choices:
            action.metavar = name.rpartition("_")[2].upper()
        formatter.add_argument(action)
    formatter.end_section()
    for title, text in (("examples", short.examples), ("exit codes", _EXIT_CODES), ("documentation", short.docs)):
        formatter.start_section(title)
        formatter.add_text(text)
        formatter.end_section()
    return formatter.format_help()
