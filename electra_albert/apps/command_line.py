"""Options to settings, errors to exit codes, help on two levels.

Precedence: defaults < preset < --config file < flags.
"""

from __future__ import annotations

import argparse
import copy
import difflib
import io
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from electra_albert.apps.run_folder import read_options
from electra_albert.contracts import UsageError, UserError
from electra_albert.training.run_log import console_log, is_main_process

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser, Namespace

LOG = logging.getLogger(__name__)

_ALL_OPTIONS = "--help-all"
_PRINT_CONFIG = "--print_config"
_OF_FILES = ("--corpus", "--input", "--train_file")  # options that a file without one may be meant for
_EXIT_CODES = """0 done, 1 a bug, 2 options and paths, 3 data, 4 a checkpoint, tokenizer or run folder,
5 training diverged, 75 stopped by a signal after saving: the same command resumes"""


class ShortHelp(NamedTuple):
    """What --help shows of a command with many options."""

    options: tuple[str, ...]
    examples: str  # lines of `command  # what it does`
    docs: str


def run_app(main: Callable[[Sequence[str]], int], argv: Sequence[str]) -> int:
    """Run an app on its arguments; an error of the user's becomes one line and its exit code."""
    _make_streams_writable()
    try:
        with console_log():
            code = main(argv)
        sys.stdout.flush()  # while a reader that has left can still be told from a failure
        return code
    except UserError as error:
        return report(error)
    except BrokenPipeError:  # the reader of our output left, as `| head` does
        _discard(sys.stdout)
        return 0
    except OSError:
        if not (failure := _write_out()):
            raise  # stdout is not what failed
        return report(UsageError(f"{failure}; make room or write elsewhere"))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    finally:
        try:
            sys.stderr.flush()
        except OSError:
            _discard(sys.stderr)


def _make_streams_writable() -> None:
    """Let a closed stdout or stderr, as by `2>&-`, lead nowhere, and one with a narrow encoding write escapes."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8"))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _write_out(text: str = "") -> str:
    """Write to stdout at once; returns why that failed, nothing where it did not or the reader has left."""
    try:
        print(text, end="", flush=True)
    except OSError as error:
        _discard(sys.stdout)
        return "" if isinstance(error, BrokenPipeError) else f"cannot write to stdout ({error.strerror})"
    return ""


def _discard(stream: TextIO) -> None:
    """Let what is left of a stream lead nowhere, for the flush that ends the interpreter."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def print_results(text: str) -> None:
    """Print the closing report of a finished run, which log.txt has too; a stdout that fails is only a warning."""
    if text and (failure := _write_out(f"{text}\n")):
        LOG.warning(f"{failure}; the same is in the run's folder")


def report(error: UserError) -> int:
    """Print the error's line, on one process where torchrun has started many; returns its exit code."""
    if is_main_process():
        print(f"error: {_one_line(str(error))}", file=sys.stderr)
    return error.exit_code


def check_can_write(folder: Path) -> None:
    """UsageError unless `folder` can be written into, or made where it is not there; makes nothing."""
    try:
        nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists() or path.is_symlink())
    except OSError as error:
        raise UsageError(f"cannot write into {str(folder)[:100]}: {error.strerror}; choose another folder") from None
    if not nearest.exists():
        raise UsageError(f"cannot write into {folder}: {nearest} is a link that leads nowhere; choose another folder")
    if not nearest.is_dir():
        raise UsageError(f"cannot write into {folder}: {nearest} is a file; choose another folder")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise UsageError(f"cannot write into {folder}: no permission in {nearest}; choose another folder")


def make_parser(program: str, description: str, usage: str | None = None, epilog: str | None = None) -> ArgumentParser:
    """A parser that refuses what it does not know, abbreviations included; with a short usage it has --help-all."""
    from jsonargparse import ArgumentParser, set_parsing_settings

    set_parsing_settings(docstring_parse_attribute_docstrings=True)
    parser = ArgumentParser(
        prog=program,
        description=description,
        usage=usage and f"%(prog)s {usage}",
        epilog=epilog,
        formatter_class=_plain_formatter(),
        exit_on_error=False,
        allow_abbrev=False,
    )
    if usage:
        parser.add_argument(_ALL_OPTIONS, action="help", help="Show every option and exit.")
    return parser


def parse(
    parser: ArgumentParser, argv: Sequence[str], short: ShortHelp | None = None, of_file: str | None = None
) -> Namespace:
    """Parse, with every complaint as a UsageError of one line that suggests what may have been meant.

    --help shows the short help where there is one. A path that stands alone is the value of the option `of_file`.
    """
    if short is not None and {"-h", "--help"} & {*argv}:
        print(_format_short_help(parser, short), end="")
        raise SystemExit(0)
    known = [name for action in parser._actions for name in action.option_strings]
    try:
        return parser.parse_args(list(argv))
    except argparse.ArgumentError as error:
        alone = str(error).partition("nrecognized arguments: ")[2]
        is_given = any(word.split("=")[0] == f"--{of_file}" for word in argv)
        if of_file is not None and not is_given and argv.count(alone) == 1 and os.path.exists(alone):
            return parse(parser, [f"--{of_file}={word}" if word == alone else word for word in argv])
        raise UsageError(_explain(str(error), known)) from None


def config_first(argv: Sequence[str]) -> list[str]:
    """The same arguments with --config before all others: the parser lets the later one win, and flags shall."""
    first: list[str] = []
    others: list[str] = []
    words = iter(argv)
    for word in words:
        name, _, value = word.partition("=")
        if name == "--config":
            first += [name, *([value] if value else islice(words, 1))]
        else:
            others.append(word)
    return first + others


def find_first(argv: Sequence[str], names: Sequence[str]) -> dict[str, str | None]:
    """Some options' values before anything else is parsed: on the command line, or else in the --config files."""
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name in names:
        finder.add_argument(f"--{name}")
    finder.add_argument("--config", action="append", default=[])
    try:
        words, _ = finder.parse_known_args(list(argv))
    except argparse.ArgumentError as error:
        raise UsageError(f"{error}; see --help") from None
    files = [_config_options(config) for config in reversed(words.config)]
    places = [vars(words), *files]
    return {name: next((str(place[name]) for place in places if place.get(name) is not None), None) for name in names}


def _config_options(config: str) -> dict[str, Any]:
    """The options in a --config file, or in JSON given in its place, as the Python interface does."""
    if not config.startswith("{") or os.path.exists(config):
        return read_options(Path(config), f"--config {config}")
    try:
        options: dict[str, Any] = json.loads(config)
    except ValueError as error:
        raise UsageError(f"--config {config[:100]}: neither a file nor JSON ({error})") from None
    return options


def _explain(message: str, known: Sequence[str]) -> str:
    """The parser's message on one line; an unknown option with the one that may be meant."""
    message = _one_line(message)
    if unknown := re.search(r"unrecognized arguments: (\S+)", message, re.IGNORECASE):
        name = unknown.group(1).split("=")[0]
        if name.startswith("-"):
            return f"there is no option {name}{suggest(name, known)}; see --help"
        is_file = " and is no file here" * (not os.path.exists(name))
        way_out = next((f"{option} {name} or " for option in _OF_FILES if option in known), "") + "--name value"
        several = ", of several files a folder or a quoted glob" * (name in message.split()[:-1])
        return f"{name!r} belongs to no option{is_file}; write {way_out}{several}, and see --help"
    unaccepted = re.search(r"(?:Option|Key) '([\w.]+)' is not accepted", message)
    unaccepted = unaccepted or re.search(r"Group '([\w.]+)' does not accept option '([\w.]+)'", message)
    if unaccepted:
        name = ".".join(unaccepted.groups())
        return f"there is no option {name!r}{suggest('--' + name, known)}; see --help"
    return re.sub(r'^Parser key "([\w.]+)"', r"--\1", message) + "; see --help"


def suggest(name: str, known: Iterable[str]) -> str:
    """A hint at the nearest known name, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def _one_line(text: str) -> str:
    return " ".join(text.split())


class _ShortFormatter(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """Keeps the lines of a text, shows the default of an option."""


def _plain_formatter() -> type[Any]:
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


def add_switches(parser: ArgumentParser, *classes: type) -> None:
    """Let the boolean options of some dataclasses, added before, be given without a value, which is true."""
    switches = {field.name for one in classes for field in fields(one) if field.type == "bool"}
    for action in parser._actions:
        if action.dest in switches:
            action.nargs, action.const = "?", True


def _format_short_help(parser: ArgumentParser, short: ShortHelp) -> str:
    """The purpose, the options that most people use by the first sentence of their help, examples and exit codes."""
    formatter = _ShortFormatter(parser.prog)
    formatter.add_usage(parser.usage, [], [])
    formatter.add_text(parser.description)
    formatter.start_section(f"options used most, of all that {_ALL_OPTIONS} shows")
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
