"""From argv to settings, and from errors to exit codes. The options are derived from config.py's dataclasses.

Precedence: defaults < preset < --config file < flags.
"""

from __future__ import annotations

import argparse
import difflib
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import fields, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

from electra_albert.apps.help_text import ALL_OPTIONS, ShortHelp, add_config, format_short_help, plain_formatter
from electra_albert.apps.pretrain.inheritance import inherited_options
from electra_albert.apps.run_folder import read_options
from electra_albert.config import (
    GROUPS,
    CorpusConfig,
    ModelConfig,
    PretrainConfig,
    RunConfig,
    TrainingConfig,
    as_settings,
)
from electra_albert.contracts import CheckpointError, UsageError, UserError
from electra_albert.objectives.registry import OBJECTIVES, spec_of
from electra_albert.presets import PRESETS
from electra_albert.training.run_log import console_log, is_main_process, log_shown

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser, Namespace

DEFAULT_PRESET = "tiny"
_FLAT = {"run": RunConfig, "corpus": CorpusConfig, "training": TrainingConfig}
_SWITCHES = {  # options that may stand alone on the command line
    "dry_run": "Prepare, build, check, print the plan with the memory and time it takes, then stop.",
    "gradient_checkpointing": "Compute activations again in the backward pass: less memory, one more forward.",
}
_SHORT_HELP = ShortHelp(
    (
        *("corpus", "preset", "output_dir", "objective", "init_from", "tokenizer", "vocab_size"),
        *("max_seq_length", "max_steps", "per_device_train_batch_size", "learning_rate", "seed", "dry_run", "config"),
    ),
    """python Pretraining.py                                     the built-in corpus, in minutes
python Pretraining.py my.txt                              the same as --corpus my.txt
python Pretraining.py "texts/*.txt.xz" --preset small --output_dir runs/mine
python Pretraining.py articles.csv --text_column body --dry_run
python Pretraining.py --init_from runs/mine --corpus more.txt --output_dir runs/adapted""",
    "README.md; docs/corpus.md (text and its formats), docs/cluster.md, docs/interop.md",
)
_OF_FILES = ("--corpus", "--input", "--train_file")  # options that a file without one may be meant for
_COLOUR = re.compile("\x1b\\[[0-9;]*m")
_TYPES = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text"}
_FOUND_FIRST = ("preset", "init_from", "output_dir")
_FROM_TOKENIZER = "vocab_size"  # the model's is the tokenizer's and cannot be chosen apart


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


@contextmanager
def last_output() -> Iterator[None]:
    """Log what a finished run prints to stdout and print it at once; a stdout that fails is only a warning."""
    held = io.StringIO()
    held.isatty = sys.stdout.isatty  # type: ignore[method-assign]
    try:
        with redirect_stdout(held):
            yield
    finally:
        log_shown(_COLOUR.sub("", held.getvalue()))
        if failure := _write_out(held.getvalue()):
            print(f"warning: {failure}; the same is in the run's folder", file=sys.stderr)


def report(error: UserError) -> int:
    """Print the error's line, on one process where torchrun has started many; returns its exit code."""
    if is_main_process():
        print(f"error: {_one_line(str(error))}", file=sys.stderr)
    return error.exit_code


def parse_pretraining(argv: Sequence[str], program: str) -> tuple[str, PretrainConfig]:
    """The preset's name and the whole configuration of a pretraining run; UsageError where an option is wrong."""
    preset, run, inherited = _find_start(argv)
    parser = make_parser(program, "Pretrain an ALBERT encoder on your own text.", "[CORPUS] [--option value ...]")
    add_config(parser, "a run's config.yaml")
    parser.add_argument("--preset", choices=list(PRESETS), default=preset, help="Sizes and rates to start from.")
    for piece in _FLAT.values():
        parser.add_class_arguments(piece, skip={"objective", *_SWITCHES})
    told = "; ".join(f"{name}, {spec.learned_from}" for name, spec in OBJECTIVES.items())
    names: Any = Literal[tuple(OBJECTIVES)]
    parser.add_argument("--objective", type=names, help=f"What the encoder learns from: {told}.")
    for name, text in _SWITCHES.items():
        parser.add_argument(f"--{name}", type=bool, nargs="?", const=True, help=text)
    for group, piece in _grouped().items():
        parser.add_class_arguments(piece, group, skip={_FROM_TOKENIZER} if group == "model" else set())
    parser.set_defaults(_dotted(as_settings(PRESETS[preset])))
    try:
        first = ["--config", json.dumps(inherited, ensure_ascii=False)] if inherited else []
        build_config(parse(parser, first))
    except (UsageError, TypeError, ValueError) as error:
        raise CheckpointError(f"--init_from {run}: what it was made with is not understood ({error})") from None
    config = build_config(parse(parser, [*first, *config_first(argv)], _SHORT_HELP, "corpus"))
    config = replace(config, run=replace(config.run, init_from=run))
    _refuse_idle_options(argv, config.run.objective)
    return preset, config


def _refuse_idle_options(argv: Sequence[str], objective: str) -> None:
    """UsageError for an option on the command line that the objective does not look at."""
    idle = _grouped().keys() - {"model", *OBJECTIVES[objective].options}
    for word in argv:
        group, _, name = word.removeprefix("--").partition(".")
        if word.startswith("--") and name and group in idle:
            raise UsageError(f"{word.split('=')[0]} has no effect with --objective {objective}; leave it out")


def _grouped() -> dict[str, type[Any]]:
    """The groups of options with a dotted name: the model's, and those that some objective reads."""
    return {
        "model": ModelConfig,
        **{group: kind for spec in OBJECTIVES.values() for group, kind in spec.options.items()},
    }


def make_parser(program: str, description: str, usage: str | None = None, epilog: str | None = None) -> ArgumentParser:
    """A parser that refuses what it does not know, abbreviations included; with a short usage it has --help-all."""
    from jsonargparse import ArgumentParser, set_parsing_settings

    set_parsing_settings(docstring_parse_attribute_docstrings=True)
    parser = ArgumentParser(
        prog=program,
        description=description,
        usage=usage and f"%(prog)s {usage}",
        epilog=epilog,
        formatter_class=plain_formatter(),
        exit_on_error=False,
        allow_abbrev=False,
    )
    if usage:
        parser.add_argument(ALL_OPTIONS, action="help", help="Show every option and exit.")
    return parser


def parse(
    parser: ArgumentParser, argv: Sequence[str], short: ShortHelp | None = None, of_file: str | None = None
) -> Namespace:
    """Parse, with every complaint as a UsageError of one line that suggests what may have been meant.

    --help shows the short help where there is one. A path that stands alone is the value of the option `of_file`.
    """
    if short is not None and {"-h", "--help"} & {*argv}:
        print(format_short_help(parser, short), end="")
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


def build_config(options: Namespace) -> PretrainConfig:
    """The dataclasses of parsed options; UsageError where one refuses its values."""
    grouped = _grouped()
    for group in grouped:
        if not hasattr(options[group], "as_dict"):
            raise UsageError(f"{group}: {options[group]!r} is no set of options; write {group}.<name> or a mapping")
    own = OBJECTIVES[options.objective].options.keys() - {*GROUPS}
    try:
        config = PretrainConfig(
            **{
                name: piece(**{field.name: options[field.name] for field in fields(piece)})
                for name, piece in _FLAT.items()
            },
            **{group: grouped[group](**options[group].as_dict()) for group in GROUPS},
            own={group: grouped[group](**options[group].as_dict()) for group in sorted(own)},
        )
        spec_of(config).generator(config)
        if config.model.attention != ModelConfig.attention or config.model.attention_options:
            from electra_albert.model.attention import make_mixing

            make_mixing(config.model)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return config


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


def config_first(argv: Sequence[str]) -> list[str]:
    """The same arguments with --config before all others: the parser lets the later one win, and flags shall."""
    first: list[str] = []
    others: list[str] = []
    words = iter(argv)
    for word in words:
        name, _, value = word.partition("=")
        if name == "--config":
            paths = [value] if value else list(islice(words, 1))
            first += [name, *map(_without_idle_case, paths)]
        else:
            others.append(word)
    return first + others


def _without_idle_case(path: str) -> str:
    """The file, or its options where it is of a time when do_lower_case was written but not looked at.

    That was when a tokenizer was given, and before there was keep_accents; now it would change that tokenizer.
    """
    options = read_options(Path(path), f"--config {path}")
    if "do_lower_case" not in options or "keep_accents" in options or options.get("tokenizer") is None:
        return path
    return json.dumps({name: value for name, value in options.items() if name != "do_lower_case"}, ensure_ascii=False)


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
    files = [read_options(Path(path), f"--config {path}") for path in reversed(words.config)]
    places = [vars(words), *files]
    return {name: next((str(place[name]) for place in places if place.get(name) is not None), None) for name in names}


def _find_start(argv: Sequence[str]) -> tuple[str, str | None, dict[str, Any]]:
    """The preset, what --init_from names and what is taken over from it, before anything else is parsed.

    The preset is looked for in the run last.
    """
    named, run, output_dir = find_first(argv, _FOUND_FIRST).values()
    inherited: dict[str, Any] = {}
    if run is not None:
        if not run or not output_dir:
            raise UsageError(
                "--init_from takes the folder of a run or of a stock model, --output_dir that of the new run; give both"
            )
        run = os.path.normpath(run)
        inherited = inherited_options(Path(run), Path(output_dir))
    taken_over = inherited.pop("preset", DEFAULT_PRESET)
    preset = named or str(taken_over)
    if preset not in PRESETS:
        raise UsageError(f"preset {preset!r} does not exist{_suggest(preset, PRESETS)}; there are {', '.join(PRESETS)}")
    return preset, run, inherited


def _dotted(settings: dict[str, Any]) -> dict[str, Any]:
    flat = {name: value for name, value in settings.items() if not isinstance(value, dict)}
    for group in GROUPS:
        flat |= {f"{group}.{name}": value for name, value in settings[group].items() if name != _FROM_TOKENIZER}
    return flat


def _explain(message: str, known: Sequence[str]) -> str:
    message = _one_line(message)
    union = re.search(
        r'key "([\w.]+)": Does not validate against any of the Union subtypes.*Given value type: (.*)', message
    )
    if union:
        return f"--{union.group(1)} has a value of the wrong kind ({union.group(2)[:60]}); see --help"
    wrong = re.search(r"""key "([\w.]+)": Expected a <class '(\w+)'>. Got value: (.*)""", message)
    if wrong:
        name, kind, value = wrong.groups()
        return f"--{name} {value} is not {_TYPES.get(kind, kind)}; see --help"
    choice = re.search(r'key "([\w.]+)": Expected a typing.Literal\[(.+)\]. Got value: (.*)', message)
    if choice:
        name, choices, value = choice.groups()
        return f"--{name} {value} is not one of {choices}; see --help"
    unknown = re.search(r"unrecognized arguments: (\S+)", message, re.IGNORECASE)
    if unknown:
        name = unknown.group(1).split("=")[0]
        if not name.startswith("-"):
            is_file = " and is no file here" * (not os.path.exists(name))
            way_out = next((f"{option} {name} or " for option in _OF_FILES if option in known), "") + "--name value"
            several = ", of several files a folder or a quoted glob" * (name in message.split()[:-1])
            return f"{name!r} belongs to no option{is_file}; write {way_out}{several}, and see --help"
        return f"there is no option {name}{_suggest(name, known)}; see --help"
    unaccepted = re.search(r"(?:Option|Key) '([\w.]+)' is not accepted", message)
    unaccepted = unaccepted or re.search(r"Group '([\w.]+)' does not accept option '([\w.]+)'", message)
    if unaccepted:
        name = ".".join(unaccepted.groups())
        return f"the --config file sets {name!r}, which is no option{_suggest('--' + name, known)}; see --help"
    return f"{message}; see --help"


def _suggest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def _one_line(text: str) -> str:
    return " ".join(text.split())
