"""Export runs, checkpoints and model folders, ours or stock, as stock Hugging Face folders or ONNX files.

electra-albert export --model runs/mine --kind discriminator --format onnx --output_dir exported
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from yaml import YAMLError

from electra_albert.apps.command_line import check_can_write, make_parser, parse
from electra_albert.apps.run_folder import ENVIRONMENT
from electra_albert.contracts import LOG, CheckpointError, UsageError
from electra_albert.data_files import NOT_YAML
from electra_albert.model_config import require, require_repository

_SENTENCES = "sentence-transformers"
_ONNX = ("onnx", "transformers.js")
_KNOWN: dict[str, tuple[str, ...]] = {"kind": ("generator", "discriminator", "task", "encoder")}
_KNOWN |= {"format": ("safetensors", "pt", *_ONNX, _SENTENCES), "dtype": ("float32", "float16", "bfloat16")}
_CHECKPOINTS = "checkpoints"
_RUN_SUBFOLDERS = ("generator", "discriminator", "model", "tokenizer", _CHECKPOINTS)
_KIND_OF = dict.fromkeys(("classifier", "electra_classifier", "qa_outputs"), "task")  # by the first head in the file
_KIND_OF |= {"discriminator_predictions": "discriminator", "predictions": "generator"}
_KIND_HELP = """Part to export: generator (masked-token head), discriminator (the part to fine-tune), task (a fine-tuned
model) or encoder (no head). By default the generator of a run, else the model that the folder contains."""
_REVISION_HELP = "Branch of the repository to upload into, such as step-10000; it is created if necessary."
_FORMAT_HELP = "File format of the weights; transformers.js is ONNX in float32 and in int8, for browsers."
_LENGTH_HELP = "Length in tokens that sentence-transformers reads; by default the model's maximum."
_PUSH_HELP = "Repository OWNER/NAME on the hub into which the folder is also uploaded; it is created if necessary."


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the exit code."""
    parser = make_parser("electra-albert export", "Export a model as a stock Hugging Face folder or as ONNX.")
    parser.add_argument("--model", type=str, required=True, help="Run folder or model folder, ours or stock.")
    parser.add_argument("--output_dir", type=str, required=True, help="Folder to write the model to.")
    parser.add_argument("--kind", choices=_KNOWN["kind"], default=None, help=_KIND_HELP)
    parser.add_argument("--format", choices=_KNOWN["format"], default="safetensors", help=_FORMAT_HELP)
    parser.add_argument("--dtype", choices=_KNOWN["dtype"], default="float32", help="Data type of the stored weights.")
    parser.add_argument("--max_seq_length", type=int | None, default=None, help=_LENGTH_HELP)
    parser.add_argument("--license", type=str | None, default=None, help="License id for the model card, such as mit.")
    parser.add_argument("--push_to_hub", type=str | None, default=None, help=_PUSH_HELP)
    parser.add_argument("--hub_private_repo", type=bool, default=False, help="Create the repository as a private one.")
    parser.add_argument("--hub_revision", type=str | None, default=None, help=_REVISION_HELP)
    done = export(**parse(parser, argv).as_dict())
    print(f"{done.kind} written to {done.folder}")
    return 0


class Exported(NamedTuple):
    """Result of an export."""

    folder: Path
    kind: str  # generator, discriminator, task or encoder


def export(
    model: str | Path,
    output_dir: str | Path,
    kind: str | None = None,
    format: str = "safetensors",
    dtype: str = "float32",
    max_seq_length: int | None = None,
    license: str | None = None,
    push_to_hub: str | None = None,
    hub_private_repo: bool = False,
    hub_revision: str | None = None,
) -> Exported:
    """Write a model as a folder that stock `transformers` loads, or as ONNX; options as on the command line.

    Raises UsageError for invalid paths and options, CheckpointError for files that do not contain such a model.
    """
    for name, value in {"format": format, "dtype": dtype, **({"kind": kind} if kind else {})}.items():
        require(value in _KNOWN[name], f"--{name} {value} is not one of {', '.join(_KNOWN[name])}")
    require(bool(str(model) and str(output_dir)), "--model and --output_dir must not be empty; give a path for each")
    try:
        require_repository(push_to_hub)
    except ValueError as error:
        raise UsageError(f"--{error}") from None
    if max_seq_length is not None and format != _SENTENCES:
        raise UsageError(f"--max_seq_length {max_seq_length} needs --format {_SENTENCES}")
    require(bool(push_to_hub) or not hub_revision, "--hub_revision has no effect without --push_to_hub")
    if format in _ONNX and dtype != "float32":
        raise UsageError(f"ONNX export supports only float32; remove --dtype {dtype} or --format {format}")
    if format == _SENTENCES and kind not in (None, "encoder"):
        raise UsageError(f"the format {_SENTENCES} has no head; remove --kind {kind}")
    kind = "encoder" if format == _SENTENCES else kind
    folder = Path(output_dir)
    check_can_write(folder)
    path = folder.resolve()
    for run in (path, path.parent) if path.name in _RUN_SUBFOLDERS else (path,):
        if (run / ENVIRONMENT).is_file() or (run / _CHECKPOINTS).is_dir():
            raise UsageError(f"{folder} belongs to a run and would be overwritten; choose another --output_dir")
    import torch

    from electra_albert.hub import card, load, onnx, save
    from electra_albert.tokenization.tokenizer import load_tokenizer

    files = load.locate(Path(model), kind or "any")
    require(files.weights.parent.resolve() != path, f"--output_dir {folder} is the model's own folder; choose another")
    if format in _ONNX:
        onnx.require_packages()
    stored = load.read_stored(files)
    most = stored.config.max_position_embeddings
    length = most if max_seq_length is None else max_seq_length
    require(1 <= length <= most, f"--max_seq_length {length} must be from 1 to {most}, the model's maximum")
    if not stored.config.is_stock:
        problem = f"has attention {stored.config.attention}, which transformers does not implement"
        raise CheckpointError(f"{files.weights} {problem}; copy its folder instead of exporting it")
    tokenizer = load_tokenizer(files.tokenizer)
    if len(tokenizer) > stored.config.vocab_size:
        sizes = f"has {len(tokenizer)} tokens, the model {stored.config.vocab_size}"
        raise CheckpointError(f"the tokenizer in {files.tokenizer} {sizes}; put the model's own tokenizer there")
    kind = kind or next((kind for head, kind in _KIND_OF.items() if head in stored.parts), "encoder")
    details, head = load.read_task(files) if kind == "task" else (None, None)
    built: Any = load.build(stored, load.KINDS[kind], head)
    parts = {name for name, _ in built.named_children()}
    parts |= {"pooler"} if "sentence_order" in parts else set()
    unused = sorted(stored.parts - parts) + sorted(stored.unsupported_heads)
    if unused and format != _SENTENCES:
        LOG.warning(f"not exported, because a model of kind {kind} does not use it: {', '.join(unused)}")
    facts = card.Facts(_read_terms(files.config.parent) | ({"license": license} if license else {}))
    form = "safetensors" if format == _SENTENCES else format
    save.save_model(built, tokenizer, folder, details, facts, file_format=form, dtype=getattr(torch, dtype))
    if format == _SENTENCES:
        save.write_pooling(folder, stored.config, length)
    if push_to_hub is not None:
        save.create_repository(push_to_hub, is_private=hub_private_repo)
        save.upload(folder, push_to_hub, f"Upload {kind}", revision=hub_revision)
    return Exported(folder, kind)


def _read_terms(folder: Path) -> dict[str, Any]:
    """License and language in the card of a model, which are those of its copies too."""
    from huggingface_hub import metadata_load

    metadata: dict[str, Any] = {}
    with suppress(OSError, YAMLError, *NOT_YAML):
        metadata = metadata_load(folder / "README.md") or {}
    return {name: metadata[name] for name in ("license", "language") if isinstance(metadata.get(name), str | list)}
