"""Stock Hugging Face folders and ONNX files of runs, checkpoints and model folders, ours or stock.

electra-albert export --model runs/mine --output_dir exported
electra-albert export --model runs/mine --kind discriminator --format onnx --output_dir exported
electra-albert export --model runs/mine --dtype float16 --license mit --output_dir small
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from electra_albert.apps.command_line import check_can_write, make_parser, parse
from electra_albert.apps.run_folder import ENVIRONMENT
from electra_albert.contracts import CheckpointError, UsageError

if TYPE_CHECKING:
    from electra_albert.hub.load import ModelFiles, Stored
    from electra_albert.hub.outputs import Model

LOG = logging.getLogger(__name__)

KINDS = ("generator", "discriminator", "task", "encoder")
_FORMATS = ("safetensors", "pt", "onnx")
_DTYPES = ("float32", "float16", "bfloat16")
_CHECKPOINTS = "checkpoints"
_OF_A_RUN = ("generator", "discriminator", "model", "tokenizer", _CHECKPOINTS)
_TASK_HEADS = {"classifier", "electra_classifier", "qa_outputs"}
_KIND_HELP = """generator fills masks, discriminator is the one to fine-tune, task was fine-tuned, encoder has no head.
By default the generator of a run, and of another folder what it holds."""


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the exit code."""
    parser = make_parser("electra-albert export", "Write stock Hugging Face folders, or ONNX files.")
    parser.add_argument("--model", type=str, required=True, help="A run folder or a model folder, ours or stock.")
    parser.add_argument("--output_dir", type=str, required=True, help="Folder to write the model into.")
    parser.add_argument("--kind", choices=KINDS, default=None, help=_KIND_HELP)
    parser.add_argument("--format", choices=_FORMATS, default="safetensors", help="Of the weights.")
    parser.add_argument("--dtype", choices=_DTYPES, default="float32", help="Of the stored weights.")
    parser.add_argument("--license", type=str | None, default=None, help="Of the weights, by its id, as mit.")
    done = export(**parse(parser, argv).as_dict())
    print(f"wrote the {done.kind} to {done.folder}")
    return 0


class Exported(NamedTuple):
    """Outcome of an export."""

    folder: Path
    kind: str  # one of KINDS


def export(
    model: str | Path,
    output_dir: str | Path,
    kind: str | None = None,
    format: str = "safetensors",
    dtype: str = "float32",
    license: str | None = None,
) -> Exported:
    """Write a model as a folder that stock `transformers` opens, or as ONNX; options as on the command line.

    Raises UsageError for paths and options that cannot be, CheckpointError for files that hold no such model.
    """
    for name, value, known in (("kind", kind, (None, *KINDS)), ("format", format, _FORMATS), ("dtype", dtype, _DTYPES)):
        if value not in known:
            raise UsageError(f"--{name} {value} is none of {', '.join(filter(None, known))}")
    if not str(model) or not str(output_dir):
        raise UsageError("--model and --output_dir need a path each")
    if format == "onnx" and dtype != "float32":
        raise UsageError(f"an ONNX file holds float32; leave out --dtype {dtype} or --format onnx")
    folder = Path(output_dir)
    check_can_write(folder)
    place = folder.resolve()
    for run in (place, place.parent) if place.name in _OF_A_RUN else (place,):
        if (run / ENVIRONMENT).is_file() or (run / _CHECKPOINTS).is_dir():
            raise UsageError(f"{folder} belongs to a run and would be overwritten; choose another --output_dir")
    import torch

    from electra_albert.corpus.tokenizer import load_tokenizer
    from electra_albert.hub.card import Facts
    from electra_albert.hub.load import read_stored
    from electra_albert.hub.onnx import require_packages
    from electra_albert.hub.save import save_model
    from electra_albert.model.attention import stock_computes

    files = _locate(Path(model), kind)
    if files.weights.parent.resolve() == place:
        raise UsageError(f"{folder} is where the model comes from; choose another --output_dir")
    if format == "onnx":
        require_packages()
    stored = read_stored(files)
    if not stock_computes(stored.config):
        attention = f"transformers has no attention {stored.config.attention}"
        raise CheckpointError(f"{attention}, so {files.weights} cannot be exported; copy its run's folder instead")
    tokenizer = load_tokenizer(files.tokenizer)
    if len(tokenizer) > stored.config.vocab_size:
        sizes = f"has {len(tokenizer)} subwords, the model {stored.config.vocab_size}"
        raise CheckpointError(f"the tokenizer in {files.tokenizer} {sizes}; put the one it was trained with there")
    kind = kind or _kind_of(stored)
    built, details = _build(kind, stored, files)
    parts = {name for name, _ in built.named_children()}
    parts |= {"pooler"} if "sentence_order" in parts else set()
    if left_aside := sorted({name.split(".")[0] for name in stored.tensors} - parts) + sorted(stored.left_aside):
        LOG.warning(f"left aside, as a model of kind {kind} has no place for it: {', '.join(left_aside)}")
    facts = Facts({"license": license} if license else {})
    save_model(built, tokenizer, folder, details, facts, file_format=format, dtype=getattr(torch, dtype))
    return Exported(folder, kind)


def _locate(path: Path, kind: str | None) -> ModelFiles:
    """The files of the model that a path means; without a kind those of a run's generator, or what the folder holds."""
    from electra_albert.hub import load

    if kind is None:
        kind = next((name for name in ("generator", "model", "discriminator") if (path / name).is_dir()), "generator")
    if kind == "encoder":
        return load.locate_encoder(path)
    return load.locate(path, "model" if kind in ("task", "model") else kind)  # type: ignore[arg-type]


def _kind_of(stored: Stored) -> str:
    """The kind of a model by the heads in its file."""
    if {name.split(".")[0] for name in stored.tensors} & _TASK_HEADS:
        return "task"
    return "discriminator" if stored.has_detection_head else "generator" if stored.has_mlm_head else "encoder"


def _build(kind: str, stored: Stored, files: ModelFiles) -> tuple[Model, dict[str, Any] | None]:
    """The model, and the details of its task where it has one."""
    from electra_albert.hub import load

    origin = str(files.weights)
    if kind == "task":
        details, head = load.read_task(files)
        return load.task_model_of(stored, head, origin), details
    if kind == "generator":
        return load.generator_of(stored, origin), None
    return (load.discriminator_of if kind == "discriminator" else load.body_of)(stored, origin), None
