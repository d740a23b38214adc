"""Command-line parsing, exit codes for errors, short and full help.

The order of options is defaults < preset < --config file < flags.
"""

import argparse
import copy
import difflib
import io
import json
import os
import re
import sys
import time
import unicodedata
from collections.abc import Callable, Collection, Iterable, Sequence, Set
from errno import ENAMETOOLONG
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from jsonargparse import ArgumentParser, DefaultHelpFormatter, Namespace, set_parsing_settings

from electra_albert.apps.run_folder import read_yaml, without_removed
from electra_albert.config.pretraining import REMOVED
from electra_albert.contracts import (
    LOG,
    STOPPED_BY_SIGNAL,
    RankLostError,
    RunResult,
    UsageError,
    UserError,
)
from electra_albert.files import parse_json
from electra_albert.training.run_log import console_log, is_main_process

_FIRST_RANK_SECONDS = 5  # in which the first rank prints an error
_ALL_OPTIONS = "--help-all"
_KEY = r'^Parser key "([\w.]+)"'  # an option, in messages of jsonargparse
_IN_FILE = r"Group '(.+)' does not accept option '(.+)'|Option '(.+)' is not accepted"
_EXPECTED = re.compile(r"Expected a (?:<class '(\w+)'>|typing\.Literal\[(.*?)\])")
_TYPES = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "dict": "a mapping",
    "list": "a list",
    "NoneType": "null",
}
_SCRIPTS = {"pretrain": "Pretraining.py", "finetune": "Finetuning.py", "demo": "LM_DEMO.py"}
_FILE_OPTIONS = ("--corpus", "--input", "--train_file")  # suggested for a path that has no option
_EXIT_CODES = """0 done, 1 a bug, 2 options and paths, 3 data, 4 a checkpoint, tokenizer or run
folder, 5 training diverged, 6 another process of a distributed run was lost, 75 stopped by a signal
after saving a checkpoint; after 6 and 75 run the same command to resume"""


class ShortHelp(NamedTuple):
    """Content of the --help page of a command with many options."""

    options: str  # names, separated by spaces
    examples: Sequence[tuple[str, ...]]  # arguments, and what the command does
    docs: str


def program(command: str) -> str:
    """The command as it was started: `electra-albert COMMAND`, or its script in a checkout."""
    script = _SCRIPTS[command]
    return f"python {script}" if Path(sys.argv[0]).name == script else f"electra-albert {command}"


def started_as(command: str, argv: Sequence[str]) -> list[str]:
    """The words of the command with these arguments."""
    return [*program(command).split(), *argv]


def format_examples(program: str, examples: Sequence[tuple[str, ...]]) -> str:
    """Lines of examples: the command, and next to those with a text what it does."""
    width = max(len(words) for words, *text in examples if text)
    lines = (f"{program} {words:{width}}  {''.join(text)}" for words, *text in examples)
    return "\n".join(map(str.rstrip, lines))


def run_app(main: Callable[[Sequence[str]], int], argv: Sequence[str]) -> int:
    """Run an app on its arguments. A UserError is printed as one line and becomes its exit code."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed, for example by `2>&-`
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # for characters that the encoding lacks
    try:
        with console_log():
            code = main(argv)
        sys.stdout.flush()  # here a closed pipe can still be distinguished from a failure
        return _leave(code)
    except UserError as error:
        return _leave(report(error))
    except MemoryError:
        advice = "use a smaller file, batch or model, or more memory"
        return _leave(report(UsageError(f"out of memory; {advice}")))
    except BrokenPipeError:  # the reader closed the pipe, as `| head` does
        _write(sys.stdout)
        return 0
    except OSError as error:
        failure = _write(sys.stdout)
        if failure:
            problem = f"{failure}; free disk space or redirect the output to another path"
        elif error.errno == ENAMETOOLONG:
            problem = f"{str(error.filename)[:100]}: {error.strerror}; give a shorter path"
        else:
            raise
        return _leave(report(UsageError(problem)))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    finally:
        _write(sys.stderr)


def _leave(exit_code: int) -> int:
    """Return the exit code; under torchrun, end a process that has joined the process group."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return exit_code
    from electra_albert.training.distributed import leave

    return leave(exit_code)


def _write(stream: TextIO, text: str = "") -> str:
    """Write `text` and flush; returns the reason of a failure, else "".

    A failed stream is redirected to devnull, for the interpreter's last flush.
    """
    try:
        print(text, end="", file=stream, flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        if not isinstance(error, BrokenPipeError):
            return f"cannot write to {stream.name} ({error.strerror})"
    return ""


def print_results(result: RunResult) -> int:
    """Print a run's final report, which is also in log.txt, and return its exit code."""
    failure = result.summary and _write(sys.stdout, f"{result.summary}\n")
    if failure:
        LOG.warning(f"{failure}; log.txt in the run's folder has the report")
    return STOPPED_BY_SIGNAL if result.is_stopped else 0


def format_table(rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Rows of cells as a table: the first `left` columns are left-aligned, the others right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = []
        for column, (cell, width) in enumerate(zip(row, widths, strict=True)):
            align = str.ljust if column < left else str.rjust
            cells.append(align(cell, width))
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def report(error: UserError) -> int:
    """Print the error as one line; returns its exit code.

    An error that all ranks have is printed by the first one.
    """
    rank = ""
    is_first = error.is_first_left if isinstance(error, RankLostError) else is_main_process()
    if not is_first:  # torchrun ends this rank when the first one has printed the error and ended
        time.sleep(_FIRST_RANK_SECONDS)
        rank = f"rank {os.environ['RANK']}: "
    if is_first or not isinstance(error, RankLostError):
        print(f"error: {rank}{' '.join(str(error).split())}", file=sys.stderr)
    return error.exit_code


def check_can_write(folder: Path) -> None:
    """Raise UsageError unless `folder` is writable or can be created; creates nothing."""
    try:
        paths = (folder, *folder.absolute().parents)
        nearest = next(path for path in paths if path.exists() or path.is_symlink())
        problem = ""
        if not nearest.is_dir():
            problem = f"{nearest} is {'a file' if nearest.exists() else 'a broken link'}"
        elif not os.access(nearest, os.W_OK | os.X_OK):
            problem = f"no permission in {nearest}"
    except OSError as error:
        problem = str(error.strerror)
    if any(unicodedata.category(character) == "Cc" for character in str(folder)):
        problem = "its name has a control character"
    if problem:
        name = str(folder)[:100]
        raise UsageError(f"cannot write into {name!r}: {problem}; choose another folder")


class _Layout(argparse.RawDescriptionHelpFormatter, DefaultHelpFormatter):  # type: ignore[misc]
    """Help with the line breaks of the description, and defaults."""


class _ShortLayout(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """The same for argparse."""


def make_parser(
    program: str, description: str, usage: str | None = None, epilog: str | None = None
) -> ArgumentParser:
    """A parser that rejects unknown and abbreviated options.

    With `usage`, it has --help-all and --config.
    """
    set_parsing_settings(docstring_parse_attribute_docstrings=True)
    parser = ArgumentParser(
        prog=program,
        description=description,
        usage=usage and f"%(prog)s {usage}",
        epilog=epilog,
        formatter_class=_Layout,
        exit_on_error=False,
        allow_abbrev=False,
    )
    if usage:
        parser.add_argument(_ALL_OPTIONS, action="help", help="Show every option and exit.")
        parser.add_argument(
            "--config",
            action="config",
            help="YAML file with options, such as a run's config.yaml.",
        )
    return parser


def parse(
    parser: ArgumentParser,
    argv: Sequence[str],
    short: ShortHelp | None = None,
    file_option: str | None = None,
) -> Namespace:
    """Parse arguments; --help prints the `short` help.

    An option that is False by default, or neither true nor false, needs no value. A path without an
    option becomes the value of `file_option`. Raises UsageError, with a suggestion, for an invalid
    option.
    """
    for action in parser._actions:
        is_flag = action.default is False or getattr(action, "_typehint", None) == bool | None
        if is_flag and action.nargs is None:
            action.nargs, action.const = "?", True
    if short is not None and {"-h", "--help"} & {*argv}:
        print(_format_short_help(parser, short), end="")
        raise SystemExit(0)
    try:
        options = parser.parse_args(list(argv))
        parser.validate(options, False)  # None too; the name of the argument has changed
        return options
    except TypeError as error:
        raise UsageError(_explain(error, ())) from None
    except argparse.ArgumentError as error:
        path = str(error).partition("nrecognized arguments: ")[2]
        is_free = file_option is not None and file_option not in option_names(argv)
        if is_free and argv.count(path) == 1 and os.path.exists(path):
            words = [f"--{file_option}={word}" if word == path else word for word in argv]
            return parse(parser, words)
        explained = _explain(error, parser._option_string_actions)
        raise UsageError(f"{explained}; see --help") from None


def _explain(error: Exception, known: Collection[str]) -> str:
    """The parser's message; for an unknown option, also in a file, with the closest known one."""
    message = " ".join(str(error).split())
    word, _, rest = message.partition("nrecognized arguments: ")[2].partition(" ")
    if word and not word.startswith("-"):
        problem = f"{word!r} belongs to no option"
        if not os.path.exists(word):
            problem += " and is not an existing file"
        files = (f"{option} {word} or " for option in _FILE_OPTIONS if option in known)
        advice = f"write {next(files, '')}--name value"
        if rest:
            advice += "; for several files, a folder or a quoted glob"
        return f"{problem}; {advice}"
    in_file = re.search(_IN_FILE, message)
    if word or in_file:
        name = word.split("=")[0]
        if in_file:
            name = "--" + ".".join(filter(None, in_file.groups()))
        removed = REMOVED.get(name.removeprefix("--"))
        if removed:
            return f"there is no option {name} any more: {removed.reason}, see dev/log"
        return f"there is no option {name}{suggest(name, known)}"
    key = re.match(_KEY, message)
    value = re.search(r"(?:Got|Given) value: (.*)$", message)
    expected = [
        _TYPES.get(name) or names.replace("'", "") for name, names in _EXPECTED.findall(message)
    ]
    if key and value and expected:
        return f"--{key[1]} must be {' or '.join(expected)}, not {value[1]}"
    required = message.partition("arguments are required: ")[2]
    if required:
        return f"give --{required.replace(', ', ' and --')}"
    return re.sub(_KEY, r"--\1", message)


def config_first(argv: Sequence[str]) -> list[str]:
    """The arguments with --config moved to the front: in the parser the last value wins."""
    options, words = _find(argv, ())
    return [*(f"--config={_without_removed(config)}" for config in options.config), *words]


def _without_removed(config: str) -> str:
    """A --config without unused options that no longer exist, as JSON if it has some."""
    options = _raw_options(config)
    remaining = without_removed(options)
    if remaining == options:
        return config
    return json.dumps(remaining, ensure_ascii=False, default=str)


def find_early(argv: Sequence[str], names: Sequence[str]) -> list[str | None]:
    """Values of some options, before the rest is parsed: of the command line, else of --config."""
    options, _ = _find(argv, names)
    values: dict[str, str | None] = dict.fromkeys(names)
    files = [without_removed(_raw_options(config)) for config in options.config]
    for source in (*files, vars(options)):
        for name in names:
            if source.get(name) is not None:
                values[name] = str(source[name])
    return [values[name] for name in names]


def _find(argv: Sequence[str], names: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    finder.add_argument("--config", action="append", default=[])
    for name in names:
        finder.add_argument(f"--{name}")
    try:
        return finder.parse_known_args(list(argv))
    except argparse.ArgumentError as error:
        raise UsageError(f"{error}; see --help") from None


def _raw_options(config: str) -> dict[str, Any]:
    """The options in a --config file, or in JSON instead of a path, for the Python interface."""
    if not config.startswith("{") or os.path.exists(config):
        return read_yaml(Path(config), f"--config {config}")
    try:
        return dict(parse_json(config, dict))
    except ValueError as error:
        raise UsageError(f"--config {config[:100]} is neither a file nor JSON ({error})") from None


def option_names(argv: Sequence[str]) -> set[str]:
    """Names of the options on the command line."""
    return {word.split("=")[0].removeprefix("--") for word in argv if word.startswith("--")}


def refuse_idle(names: Set[str], rules: Iterable[tuple[Any, Set[str], str]]) -> None:
    """Raise UsageError for options without effect.

    rules: whether it applies, the options that are then idle, and what makes them so.
    """
    for applies, options, other in rules:
        idle = sorted(names & options)
        if applies and idle:
            listed = ", ".join(f"--{name}" for name in idle)
            raise UsageError(f"{listed} has no effect with {other}; leave it out")


def suggest(name: str, known: Iterable[str]) -> str:
    """A "did you mean" hint with the closest known name, or nothing."""
    closest = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {closest[0]}?)" if closest else ""


def _format_short_help(parser: ArgumentParser, short: ShortHelp) -> str:
    """The description, the most used options with a sentence of help, examples and exit codes."""
    page = argparse.ArgumentParser(
        parser.prog, parser.usage, parser.description, formatter_class=_ShortLayout, add_help=False
    )
    listed = page.add_argument_group(f"most used options ({_ALL_OPTIONS} shows all)")
    for name in short.options.split():
        action = copy.copy(parser._option_string_actions[f"--{name}"])
        action.help = re.split(r"(?<=\.)\s", str(action.help))[0]
        if action.default in (None, False):
            action.default = argparse.SUPPRESS
        if action.metavar is None and not action.choices:
            action.metavar = name.rpartition("_")[2].upper()
        listed._group_actions.append(action)
    page.add_argument_group("examples", format_examples(parser.prog, short.examples))
    page.add_argument_group("exit codes", _EXIT_CODES)
    page.add_argument_group("documentation", short.docs)
    return page.format_help()
