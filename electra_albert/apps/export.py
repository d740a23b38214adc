"""Stock Hugging Face folders and ONNX files of runs, checkpoints and model folders, ours or stock.

electra-albert export --model runs/mine --kind discriminator --format onnx --output_dir exported
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from electra_albert.apps.command_line import check_can_write, make_parser, parse
from electra_albert.apps.run_folder import ENVIRONMENT
from electra_albert.contracts import CheckpointError, UsageError

LOG = logging.getLogger(__name__)

_KNOWN: dict[str, tuple[str, ...]] = {"kind": ("generator", "discriminator", "task", "encoder")}
_KNOWN |= {"format": ("safetensors", "pt", "onnx"), "dtype": ("float32", "float16", "bfloat16")}
_CHECKPOINTS = "checkpoints"
_OF_A_RUN = ("generator", "discriminator", "model", "tokenizer", _CHECKPOINTS)
_KIND_OF = dict.fromkeys(("classifier", "electra_classifier", "qa_outputs"), "task")  # by the first head in the file
_KIND_OF |= {"discriminator_predictions": "discriminator", "predictions": "generator"}
_KIND_HELP = """generator fills masks, discriminator is the one to fine-tune, task was fine-tuned, encoder has no head.
By default the generator of a run, and of another folder what it holds."""


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the exit code."""
    parser = make_parser("electra-albert export", "Write stock Hugging Face folders, or ONNX files.")
    parser.add_argument("--model", type=str, required=True, help="A run folder or a model folder, ours or stock.")
    parser.add_argument("--output_dir", type=str, required=True, help="Folder to write the model into.")
    parser.add_argument("--kind", choices=_KNOWN["kind"], default=None, help=_KIND_HELP)
    parser.add_argument("--format", choices=_KNOWN["format"], default="safetensors", help="Of the weights.")
    parser.add_argument("--dtype", choices=_KNOWN["dtype"], default="float32", help="Of the stored weights.")
    parser.add_argument("--license", type=str | None, default=None, help="Of the weights, by its id, as mit.")
    done = export(**parse(parser, argv).as_dict())
    print(f"wrote the {done.kind} to {done.folder}")
    return 0


class Exported(NamedTuple):
    """Outcome of an export."""

    folder: Path
    kind: str  # generator, discriminator, task or encoder


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
    for name, value in {"format": format, "dtype": dtype, **({"kind": kind} if kind else {})}.items():
        if value not in _KNOWN[name]:
            raise UsageError(f"--{name} {value} is none of {', '.join(_KNOWN[name])}")
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
    from electra_albert.hub import load, onnx
    from electra_albert.hub.card import Facts
    from electra_albert.hub.save import save_model
    from electra_albert.model.attention import stock_computes

    files = load.locate(Path(model), kind or "any")
    if files.weights.parent.resolve() == place:
        raise UsageError(f"{folder} is where the model comes from; choose another --output_dir")
    if format == "onnx":
        onnx.require_packages()
    stored = load.read_stored(files)
    if not stock_computes(stored.config):
        attention = stored.config.attention
        raise CheckpointError(f"transformers has no attention {attention}, which {files.weights} has; copy its folder")
    tokenizer = load_tokenizer(files.tokenizer)
    if len(tokenizer) > stored.config.vocab_size:
        sizes = f"has {len(tokenizer)} subwords, the model {stored.config.vocab_size}"
        raise CheckpointError(f"the tokenizer in {files.tokenizer} {sizes}; put the one it was trained with there")
    kind = kind or next((kind for head, kind in _KIND_OF.items() if head in stored.parts), "encoder")
    details, head = load.read_task(files) if kind == "task" else (None, None)
    built: Any = load.build(stored, load.KINDS[kind], head)
    parts = {name for name, _ in built.named_children()}
    parts |= {"pooler"} if "sentence_order" in parts else set()
    if left_aside := sorted(stored.parts - parts) + sorted(stored.unsupported_heads):
        LOG.warning(f"left aside, as a model of kind {kind} has no place for it: {', '.join(left_aside)}")
    facts = Facts({"license": license} if license else {})
    save_model(built, tokenizer, folder, details, facts, file_format=format, dtype=getattr(torch, dtype))
    return Exported(folder, kind)
