"""Stock Hugging Face folders: a generator for fill-mask, a discriminator to fine-tune, a model that was fine-tuned.

python -m electra_albert.apps.export --model runs/mine --output_dir exported
python -m electra_albert.apps.export --model runs/mine --kind discriminator --format onnx --output_dir exported
python -m electra_albert.apps.export --from_tf albert_base_v2 --output_dir exported
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from electra_albert.apps.command_line import check_can_write, make_parser, parse, run_app
from electra_albert.contracts import UsageError
from electra_albert.corpus.tokenizer import load_tokenizer, save_tokenizer

if TYPE_CHECKING:
    from jsonargparse import Namespace

    from electra_albert.model.body import Body
    from electra_albert.model.electra import Discriminator, Generator
    from electra_albert.model.loading import ModelFiles
    from electra_albert.model.outputs import Model
    from electra_albert.model.task_model import TaskModel

CARD = "README.md"
_FORMATS = ("safetensors", "pt", "onnx")
_NUMBER_LABEL = "score"  # the one output of a regression


class _Form(NamedTuple):
    """What a folder is written as."""

    architecture: str
    file_format: str = "safetensors"
    settings: Mapping[str, Any] = {}  # of config.json, beside those of the shape
    details: Mapping[str, Any] | None = None  # of the task, in a file of their own


def export_generator(generator: Generator, tokenizer: Any, folder: Path, file_format: str = "safetensors") -> None:
    """Write a folder that `AutoModelForMaskedLM` and `pipeline("fill-mask")` load.

    One with a sentence-order head is loaded by `AutoModelForPreTraining` too. Raises CheckpointError where stock
    classes compute other values, UsageError where the folder cannot be written.
    """
    architecture = "AlbertForMaskedLM" if generator.sentence_order is None else "AlbertForPreTraining"
    _publish(folder, generator, tokenizer, _Form(architecture, file_format))


def export_discriminator(
    discriminator: Discriminator, tokenizer: Any, folder: Path, file_format: str = "safetensors"
) -> None:
    """Write a folder whose encoder `AutoModel` loads; the detection head goes along under ELECTRA's own names.

    Raises as export_generator does.
    """
    _publish(folder, discriminator, tokenizer, _Form("AlbertModel", file_format))


def export_body(body: Body, tokenizer: Any, folder: Path, file_format: str = "safetensors") -> None:
    """Write a folder that `AutoModel` loads, with the pooler where there is one. Raises as export_generator does."""
    _publish(folder, body, tokenizer, _Form("AlbertModel", file_format))


def export_task_model(
    model: TaskModel, tokenizer: Any, folder: Path, details: Mapping[str, Any], file_format: str = "safetensors"
) -> None:
    """Write a folder that `AutoModelForSequenceClassification` or its sibling loads, with names for the labels.

    A head of style electra has no stock class: `AutoModel` loads the encoder, `load_task_model` all of it. `details`
    are kept for `load_task_model`; of them labels (and is_regression) must describe the model's head, else ValueError.
    Raises as export_generator does. Leaves the model in eval mode.
    """
    from electra_albert.model.loading import head_of

    head = model.head
    details = {**details, "kind": head.kind, "style": head.style}
    if head_of(details, head.dropout) != head:
        raise ValueError(f"labels {details['labels']} are none of a head of kind {head.kind} with {head.num_labels}")
    settings: dict[str, Any] = {"classifier_dropout_prob": head.dropout}
    if head.kind in ("sequence", "token"):
        names = details["labels"] or [_NUMBER_LABEL]
        settings["id2label"] = {str(number): name for number, name in enumerate(names)}
        settings["label2id"] = {name: number for number, name in enumerate(names)}
    if head.kind == "sequence":
        settings["problem_type"] = "regression" if details.get("is_regression") else "single_label_classification"
    _publish(folder, model, tokenizer, _Form(model.architecture, file_format, settings, details))


def _publish(folder: Path, model: Model, tokenizer: Any, form: _Form) -> None:
    """Write beside, check there, then put the files in place, weights last; older weights of another format go."""
    from electra_albert.apps.export_checks import check_against_stock
    from electra_albert.model.loading import TASK_FILE

    check_can_write(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".writing-", dir=folder) as name:
            beside = Path(name)
            weights = _write(beside, model, tokenizer, form)
            if form.file_format == "safetensors":
                check_against_stock(model, beside, form.architecture)
            files = sorted(beside.iterdir(), key=lambda path: path == weights)
            for file in files:
                os.replace(file, folder / file.name)
        for other in _weight_files() - {file.name for file in files}:
            (folder / other).unlink(missing_ok=True)
        if form.details is None:
            (folder / TASK_FILE).unlink(missing_ok=True)  # of a fine-tuned model that lay here
    except OSError as error:
        raise UsageError(f"cannot write the model into {folder} ({error.strerror or error}); make room") from None


def _weight_files() -> set[str]:
    from electra_albert.apps.export_onnx import DATA_FILE, ONNX_FILE
    from electra_albert.model.weight_files import WEIGHT_FILES

    return {*WEIGHT_FILES, ONNX_FILE, DATA_FILE}


def _write(folder: Path, model: Model, tokenizer: Any, form: _Form) -> Path:
    """Write card, configuration, tokenizer and weights; returns the weights' file."""
    from electra_albert.apps.model_card import model_card
    from electra_albert.model.loading import CONFIG_FILE, TASK_FILE
    from electra_albert.model.stock_config import stock_config

    special = {
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.cls_token_id,
        "eos_token_id": tokenizer.sep_token_id,
    }
    config = {**stock_config(model.config, form.architecture, special), **form.settings}
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (folder / CARD).write_text(model_card(model, form.architecture), encoding="utf-8")
    if form.details is not None:
        (folder / TASK_FILE).write_text(json.dumps(form.details, indent=2) + "\n", encoding="utf-8")
    save_tokenizer(tokenizer, folder, model.config.max_position_embeddings)
    weights = _write_weights(folder, model, form.file_format)
    return weights


def _write_weights(folder: Path, model: Model, file_format: str) -> Path:
    if file_format == "onnx":
        from electra_albert.apps.export_onnx import write_onnx

        return write_onnx(model, folder)
    from electra_albert.model.huggingface import to_stock

    tensors = to_stock(model.state_dict())
    if file_format == "pt":
        import torch

        weights = folder / "weights.pt"
        torch.save(tensors, weights)
    else:
        from electra_albert.model.weight_files import write_safetensors

        weights = folder / "model.safetensors"
        write_safetensors(tensors, weights)
    return weights


class _Kind(NamedTuple):
    """One choice of --kind."""

    locate: Callable[[Path], ModelFiles]
    load: Callable[[ModelFiles], Any]
    write: Callable[[Any, Any, Path, str], None]  # what was loaded, tokenizer, folder, file format


def _kinds() -> dict[str, _Kind]:
    from electra_albert.model import loading

    def write_task(loaded: Any, tokenizer: Any, folder: Path, file_format: str) -> None:
        model, details = loaded
        export_task_model(model, tokenizer, folder, details, file_format)

    return {
        "generator": _Kind(lambda path: loading.locate(path, "generator"), loading.load_generator, export_generator),
        "discriminator": _Kind(
            lambda path: loading.locate(path, "discriminator"), loading.load_discriminator, export_discriminator
        ),
        "task": _Kind(lambda path: loading.locate(path, "model"), loading.load_task_model, write_task),
        "encoder": _Kind(loading.locate_encoder, loading.load_body, export_body),
    }


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the exit code."""
    options = _parse(argv)
    folder = Path(options.output_dir)
    if options.from_tf:
        from electra_albert.apps.from_tf import convert_tensorflow

        tokenizer = Path(options.tokenizer) if options.tokenizer else None
        convert_tensorflow(Path(options.from_tf), folder, print, tokenizer)
        return 0
    kind = _kinds()[options.kind]
    files = kind.locate(Path(options.model))
    if files.weights.parent.resolve() == folder.resolve():
        raise UsageError(f"{folder} is where the model comes from; choose another --output_dir")
    if options.format == "onnx":
        from electra_albert.apps.export_onnx import require_packages

        require_packages()
    kind.write(kind.load(files), load_tokenizer(files.tokenizer), folder, options.format)
    print(f"wrote the {options.kind} to {folder}")
    return 0


def _parse(argv: Sequence[str]) -> Namespace:
    parser = make_parser("python -m electra_albert.apps.export", "Write stock Hugging Face folders.")
    parser.add_argument("--model", type=str | None, default=None, help="A run folder or a model folder, ours or stock.")
    parser.add_argument(
        "--kind",
        choices=["generator", "discriminator", "task", "encoder"],
        default="generator",
        help="generator fills masks, discriminator is the one to fine-tune, task was fine-tuned, encoder has no head.",
    )
    parser.add_argument("--output_dir", type=str, required=True, help="Folder to write the model into.")
    parser.add_argument("--format", choices=[*_FORMATS], default="safetensors", help="Of the weights.")
    parser.add_argument(
        "--from_tf", type=str | None, default=None, help="Instead of --model: a TensorFlow 1 ALBERT folder of Google's."
    )
    parser.add_argument(
        "--tokenizer", type=str | None, default=None, help="Of --from_tf; by default the one in its folder."
    )
    options = parse(parser, argv)
    if options.tokenizer and not options.from_tf:
        raise UsageError("--tokenizer goes with --from_tf; another --model brings its own")
    if options.from_tf and (options.kind != "generator" or options.format != "safetensors"):
        raise UsageError("--from_tf writes a stock folder with all heads; export that for another --kind or --format")
    if (options.model is None) == (options.from_tf is None):
        raise UsageError("give either --model, a run or model folder, or --from_tf, a TensorFlow checkpoint")
    return options


if __name__ == "__main__":
    raise SystemExit(run_app(main))
