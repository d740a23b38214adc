"""Stock Hugging Face folders of generators, discriminators and fine-tuned models; generator and discriminator in one.

electra-albert export --model runs/mine --output_dir exported
electra-albert export --model runs/mine --kind discriminator --format onnx --output_dir exported
electra-albert export --model runs/mine --kind pair --output_dir data/models/mine
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from electra_albert.apps.command_line import check_can_write, make_parser, parse
from electra_albert.apps.export.models import (
    export_body,
    export_discriminator,
    export_generator,
    export_task_model,
)
from electra_albert.apps.export.source import (
    left_aside,
    refuse_a_pairs_folder,
    refuse_a_runs_folder,
    refuse_source,
    require_rows,
    require_stock,
    say_left_aside,
)
from electra_albert.contracts import UsageError
from electra_albert.corpus.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from jsonargparse import Namespace

    from electra_albert.hub.load import ModelFiles, Stored

_DESCRIPTION = "Write stock Hugging Face folders, or generator and discriminator in one small one (--kind pair)."
_FORMATS = ("safetensors", "pt", "onnx")
_PAIR = "pair"
_PATHS = ("model", "output_dir", "card")
_OF_A_PAIR = ("card", "license")
_LICENSE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]*")  # stands bare in the card's front matter


class _Loaded(NamedTuple):
    """What the files of a model became."""

    model: Any
    left_aside: list[str]  # parts that the files hold and the model has no place for
    details: dict[str, Any]  # of the task


class _Kind(NamedTuple):
    """One choice of --kind."""

    locate: Callable[[Path], ModelFiles]
    load: Callable[[ModelFiles], _Loaded]
    write: Callable[[_Loaded, Any, Path, str], None]  # what was loaded, tokenizer, folder, file format


def _kinds() -> dict[str, _Kind]:
    from electra_albert.hub import load as loading

    def kind(
        locate: Callable[[Path], ModelFiles],
        build: Callable[[Stored, str], Any],
        export: Callable[[Any, Any, Path, str], None],
    ) -> _Kind:
        def load(files: ModelFiles) -> _Loaded:
            stored = loading.read_stored(files)
            model = build(stored, str(files.weights))
            return _Loaded(model, left_aside(stored, model), {})

        return _Kind(locate, load, lambda loaded, *more: export(loaded.model, *more))

    def load_task(files: ModelFiles) -> _Loaded:
        model, details = loading.load_task_model(files)
        return _Loaded(model, left_aside(loading.read_stored(files), model), details)

    def write_task(loaded: _Loaded, tokenizer: Any, folder: Path, file_format: str) -> None:
        export_task_model(loaded.model, tokenizer, folder, loaded.details, file_format)

    return {
        "generator": kind(lambda path: loading.locate(path, "generator"), loading.generator_of, export_generator),
        "discriminator": kind(
            lambda path: loading.locate(path, "discriminator"), loading.discriminator_of, export_discriminator
        ),
        "task": _Kind(lambda path: loading.locate(path, "model"), load_task, write_task),
        "encoder": kind(loading.locate_encoder, loading.body_of, export_body),
    }


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the exit code."""
    options = _parse(argv)
    folder = Path(options.output_dir)
    check_can_write(folder)
    refuse_a_runs_folder(folder)
    if options.kind == _PAIR:
        return _write_pair(options, folder)
    refuse_a_pairs_folder(folder)
    kind = _kinds()[options.kind]
    files = kind.locate(Path(options.model))
    refuse_source(folder, files)
    require_stock(files)
    if options.format == "onnx":
        from electra_albert.apps.export.onnx import require_packages

        require_packages()
    loaded, vocabulary = kind.load(files), load_tokenizer(files.tokenizer)
    require_rows(len(vocabulary), loaded.model.config.vocab_size, files)
    say_left_aside(loaded.left_aside, options.kind)
    kind.write(loaded, vocabulary, folder, options.format)
    print(f"wrote the {options.kind} to {folder}")
    return 0


def _write_pair(options: Namespace, folder: Path) -> int:
    from electra_albert.apps.export.pair import export_pair
    from electra_albert.apps.export.pair_card import Told, read_scores

    told = Told(read_scores(Path(options.card)) if options.card else "", options.license)
    written = export_pair(Path(options.model), folder, told)
    print(
        f"rounding to half precision moves, on the fixed rows, masked-token logits by {written.change.logits:.1e} of "
        f"the largest and detection probabilities by {written.change.probability:.1e}, at most"
    )
    print(f"wrote generator and discriminator to {folder}: {written.size_bytes:,} bytes of weights")
    return 0


def _parse(argv: Sequence[str]) -> Namespace:
    parser = make_parser("electra-albert export", _DESCRIPTION)
    parser.add_argument("--model", type=str, required=True, help="A run folder or a model folder, ours or stock.")
    parser.add_argument(
        "--kind",
        choices=["generator", "discriminator", "task", "encoder", _PAIR],
        default="generator",
        help="generator fills masks, discriminator is the one to fine-tune, task was fine-tuned, encoder has no head; "
        "pair is generator and discriminator in one half-precision file, for this toolkit.",
    )
    parser.add_argument("--output_dir", type=str, required=True, help="Folder to write the model into.")
    parser.add_argument("--format", choices=[*_FORMATS], default="safetensors", help="Of the weights.")
    parser.add_argument("--card", type=str | None, default=None, help="Of --kind pair: Markdown for its card's scores.")
    parser.add_argument(
        "--license", type=str | None, default=None, help="Of --kind pair: the weights' licence by its id, as mit."
    )
    options = parse(parser, argv)
    _check(options)
    return options


def _check(options: Namespace) -> None:
    empty = [name for name in _PATHS if options[name] == ""]
    if empty:
        raise UsageError(f"--{empty[0]} is empty; give a path")
    strays = [name for name in _OF_A_PAIR if options[name] is not None and options.kind != _PAIR]
    if strays:
        raise UsageError(f"--{strays[0]} goes with --kind {_PAIR}; the cards of other kinds tell how to load them")
    if options.license is not None and not _LICENSE.fullmatch(options.license):
        raise UsageError(f"--license {options.license!r} is no id of a licence; give one such as mit or cc-by-sa-4.0")
    if options.kind == _PAIR and options.format != "safetensors":
        raise UsageError(f"--kind {_PAIR} is written as safetensors; leave out --format {options.format}")
