"""Export runs, checkpoints and model folders, ours or stock, as stock folders or ONNX files.

electra-albert export --model runs/mine --kind discriminator --format onnx --output_dir exported
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from yaml import YAMLError

from electra_albert.apps.command_line import check_can_write, make_parser, parse
from electra_albert.apps.run_folder import ENVIRONMENT
from electra_albert.config.checks import require, require_repository
from electra_albert.config.model import ModelConfig
from electra_albert.contracts import LOG, CheckpointError
from electra_albert.data_files import NOT_YAML

Kind = Literal["generator", "discriminator", "task", "encoder"]
Format = Literal["safetensors", "pt", "onnx", "transformers.js", "sentence-transformers"]
Dtype = Literal["float32", "float16", "bfloat16"]
_SENTENCES = "sentence-transformers"
_ONNX = ("onnx", "transformers.js")
_CHECKPOINTS = "checkpoints"
_RUN_SUBFOLDERS = ("generator", "discriminator", "model", "tokenizer", _CHECKPOINTS)
_KIND_OF: dict[str, Kind] = {  # by the first head in the file
    "classifier": "task",
    "electra_classifier": "task",
    "qa_outputs": "task",
    "discriminator_predictions": "discriminator",
    "predictions": "generator",
}


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the exit code."""
    parser = make_parser("electra-albert export", "Export a model as a stock folder or as ONNX.")
    parser.add_function_arguments(export)
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
    kind: Kind | None = None,
    format: Format = "safetensors",
    dtype: Dtype = "float32",
    max_seq_length: int | None = None,
    license: str | None = None,
    push_to_hub: str | None = None,
    hub_private_repo: bool = False,
    hub_revision: str | None = None,
) -> Exported:
    """Write a model as a folder that stock `transformers` loads, or as ONNX.

    Raises UsageError for invalid paths and options, CheckpointError for files that do not contain
    such a model.

    Args:
        model: Run folder or model folder, ours or stock.
        output_dir: Folder to write the model to.
        kind: Part to export: generator (masked-token head), discriminator (the part to fine-tune),
            task (a fine-tuned model) or encoder (no head). By default the generator of a run, else
            the model that the folder contains.
        format: File format of the weights; transformers.js is ONNX in float32 and in int8, for
            browsers.
        dtype: Data type of the stored weights.
        max_seq_length: Length in tokens that sentence-transformers reads; by default the model's
            maximum.
        license: License id for the model card, such as mit.
        push_to_hub: Repository OWNER/NAME on the hub into which the folder is also uploaded; it is
            created if necessary.
        hub_private_repo: Create the repository as a private one.
        hub_revision: Branch of the repository to upload into, such as step-10000; it is created if
            necessary.
    """
    _check_options(kind, format, dtype, max_seq_length)
    require_repository(push_to_hub)
    is_used = bool(push_to_hub) or not (hub_revision or hub_private_repo)
    require(is_used, "--hub_revision and --hub_private_repo have no effect without --push_to_hub")
    has_paths = bool(str(model) and str(output_dir))
    require(has_paths, "--model and --output_dir must not be empty; give a path for each")
    folder = Path(output_dir)
    _check_folder(folder)
    import torch

    from electra_albert.hub import card, load, modernbert, onnx, save

    is_vectors = format == _SENTENCES
    if is_vectors:
        kind = "encoder"
    files = load.locate(Path(model), kind or "any")
    is_other = files.weights.parent.resolve() != folder.resolve()
    require(is_other, f"--output_dir {folder} is the model's own folder; choose another")
    if format in _ONNX:
        onnx.require_packages()
    stored = load.read_stored(files)
    most = stored.config.max_position_embeddings
    length = most if max_seq_length is None else max_seq_length
    problem = f"--max_seq_length {length} must be from 1 to {most}, the model's maximum"
    require(1 <= length <= most, problem)
    tokenizer = _read_tokenizer(files, stored.config)
    kinds = [part for head, part in _KIND_OF.items() if head in stored.parts]
    kind = kind or (kinds[0] if kinds else "encoder")
    details, head = load.read_task(files) if kind == "task" else (None, None)
    built: Any = load.build(stored, load.KINDS[kind], head)
    form: str = "safetensors" if is_vectors else format
    written = {name for name, _ in built.named_children()}
    if stored.config.block == "modern" and form == "safetensors":
        form = "modernbert"
        written &= {"embeddings", "encoder", "classifier", modernbert.CLASSES[type(built)][1]}
    if not is_vectors:
        _warn_of_unused(stored, written, kind)
    facts = card.Facts(_read_terms(files.config.parent) | ({"license": license} if license else {}))
    save.save_model(
        built,
        tokenizer,
        folder,
        details,
        facts,
        file_format=form,
        dtype=getattr(torch, dtype),
        pooled_length=length if is_vectors else None,
    )
    if push_to_hub is not None:
        save.create_repository(push_to_hub, is_private=hub_private_repo)
        save.upload(folder, push_to_hub, f"Upload {kind}", revision=hub_revision)
    return Exported(folder, kind)


def _check_options(kind: Kind | None, format: Format, dtype: Dtype, length: int | None) -> None:
    for name, value, names in (
        ("kind", kind or "encoder", Kind),
        ("format", format, Format),
        ("dtype", dtype, Dtype),
    ):
        choices = get_args(names)
        require(value in choices, f"--{name} {value} is not one of {', '.join(choices)}")
    if format == _SENTENCES:
        problem = f"the format {_SENTENCES} has no head; remove --kind {kind}"
        require(kind in (None, "encoder"), problem)
    else:
        require(length is None, f"--max_seq_length {length} needs --format {_SENTENCES}")
    if format in _ONNX:
        advice = f"remove --dtype {dtype} or --format {format}"
        require(dtype == "float32", f"ONNX export supports only float32; {advice}")


def _check_folder(folder: Path) -> None:
    """Raise UsageError unless `folder` can be written and is no run and no part of one."""
    check_can_write(folder)
    path = folder.resolve()
    for run in (path, path.parent) if path.name in _RUN_SUBFOLDERS else (path,):
        is_run = (run / ENVIRONMENT).is_file() or (run / _CHECKPOINTS).is_dir()
        problem = f"{folder} belongs to a run and would be overwritten"
        require(not is_run, f"{problem}; choose another --output_dir")


def _read_tokenizer(files: Any, config: ModelConfig) -> Any:
    """The tokenizer of a model. Raises CheckpointError if stock cannot use it with the model."""
    from electra_albert.tokenization.tokenizer import load_tokenizer

    if config.attention != ModelConfig.attention:
        raise CheckpointError(
            f"{files.weights} has attention {config.attention}, "
            "which transformers does not implement; copy its folder instead of exporting it"
        )
    tokenizer = load_tokenizer(files.tokenizer)
    if len(tokenizer) > config.vocab_size:
        sizes = f"has {len(tokenizer)} tokens, the model {config.vocab_size}"
        raise CheckpointError(
            f"the tokenizer in {files.tokenizer} {sizes}; put the model's own tokenizer there"
        )
    return tokenizer


def _warn_of_unused(stored: Any, parts: set[str], kind: str) -> None:
    if "sentence_order" in parts:
        parts.add("pooler")
    unused = sorted(stored.parts - parts) + sorted(stored.unsupported_heads)
    if unused:
        LOG.warning(
            f"not exported, because a model of kind {kind} does not use it: {', '.join(unused)}"
        )


def _read_terms(folder: Path) -> dict[str, Any]:
    """License and language in the card of a model, which are those of its copies too."""
    from huggingface_hub import metadata_load

    metadata: dict[str, Any] = {}
    with suppress(OSError, YAMLError, *NOT_YAML):
        metadata = metadata_load(folder / "README.md") or {}
    terms = {name: metadata.get(name) for name in ("license", "language")}
    return {name: value for name, value in terms.items() if isinstance(value, str | list)}
