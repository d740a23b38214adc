"""Stock Hugging Face folders: a generator for fill-mask, a discriminator to fine-tune, a model that was fine-tuned.

python -m electra_albert.apps.export --model runs/mine --output_dir exported
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from electra_albert.apps.command_line import check_can_write, make_parser, parse, run_app
from electra_albert.contracts import CheckpointError, UsageError
from electra_albert.corpus.tokenizer import load_tokenizer, save_tokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from electra_albert.config import ModelConfig
    from electra_albert.model.electra import Discriminator, Generator
    from electra_albert.model.loading import Kind
    from electra_albert.model.task_model import TaskModel

LOGITS_TOLERANCE = 1e-4  # float32, relative to the largest value: what another order of additions may change
_CHECKED_ROW = 24
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
    _publish(folder, generator, tokenizer, _Form(architecture, file_format), _check_generator)


def export_discriminator(
    discriminator: Discriminator, tokenizer: Any, folder: Path, file_format: str = "safetensors"
) -> None:
    """Write a folder whose encoder `AutoModel` loads; the detection head goes along under ELECTRA's own names.

    Raises as export_generator does.
    """
    _publish(folder, discriminator, tokenizer, _Form("AlbertModel", file_format), _check_discriminator)


def export_task_model(model: TaskModel, tokenizer: Any, folder: Path, details: Mapping[str, Any]) -> None:
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
    _publish(folder, model, tokenizer, _Form(model.architecture, settings=settings, details=details), _check_task_model)


def _publish(folder: Path, model: Any, tokenizer: Any, form: _Form, check: Callable[[Any, Path], None]) -> None:
    """Write beside, check there, then put the files in place, weights last; older weights of another format go."""
    from electra_albert.model.loading import TASK_FILE
    from electra_albert.model.weight_files import WEIGHT_FILES

    check_can_write(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".writing-", dir=folder) as name:
            beside = Path(name)
            weights = _write(beside, model, tokenizer, form)
            if form.file_format == "safetensors":
                check(model, beside)
            for file in sorted(beside.iterdir(), key=lambda path: path == weights):
                os.replace(file, folder / file.name)
        for other in WEIGHT_FILES:
            if other != weights.name:
                (folder / other).unlink(missing_ok=True)
        if form.details is None:
            (folder / TASK_FILE).unlink(missing_ok=True)  # of a fine-tuned model that lay here
    except OSError as error:
        raise UsageError(f"cannot write the model into {folder} ({error.strerror or error}); make room") from None


def _write(folder: Path, model: Generator | Discriminator | TaskModel, tokenizer: Any, form: _Form) -> Path:
    """Write weights, configuration and tokenizer; returns the weights' file."""
    from electra_albert.model.huggingface import to_stock
    from electra_albert.model.loading import CONFIG_FILE, TASK_FILE
    from electra_albert.model.stock_config import stock_config

    tensors = to_stock(model.state_dict())
    special = {
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.cls_token_id,
        "eos_token_id": tokenizer.sep_token_id,
    }
    config = {**stock_config(model.config, form.architecture, special), **form.settings}
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    if form.details is not None:
        (folder / TASK_FILE).write_text(json.dumps(form.details, indent=2) + "\n", encoding="utf-8")
    save_tokenizer(tokenizer, folder, model.config.max_position_embeddings)
    if form.file_format == "pt":
        import torch

        weights = folder / "weights.pt"
        torch.save(tensors, weights)
    else:
        from safetensors.torch import save_file

        weights = folder / "model.safetensors"
        save_file(tensors, str(weights), metadata={"format": "pt"})
    weights.chmod((folder / CONFIG_FILE).stat().st_mode & 0o777)  # safetensors writes files only their owner can read
    return weights


def _probe(config: ModelConfig) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, mask and segments [2, L] that use all of what the model reads."""
    import torch

    length = min(_CHECKED_ROW, config.max_position_embeddings)
    ids = (torch.arange(2 * length) * 7919 % config.vocab_size).view(2, length)
    mask = torch.ones_like(ids)
    mask[1, length // 2 :] = 0
    segments = (torch.arange(length) * config.type_vocab_size // length).expand_as(ids)
    return ids, mask, segments


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """No progress bars, and no report of the detection head, which the stock encoder has no place for."""
    from transformers.utils import logging

    verbosity, had_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if had_bars:
            logging.enable_progress_bar()


def _check_generator(generator: Generator, folder: Path) -> None:
    import torch
    from transformers import AlbertForMaskedLM, AlbertForPreTraining

    stock_class = AlbertForMaskedLM if generator.sentence_order is None else AlbertForPreTraining
    with quiet_transformers():
        stock = stock_class.from_pretrained(str(folder), local_files_only=True, attn_implementation="sdpa").eval()
    ids, mask, segments = _probe(generator.config)
    model = generator.eval()
    with torch.no_grad():
        theirs = stock(input_ids=ids, attention_mask=mask, token_type_ids=segments)
        hidden_states = model(ids, mask.bool(), segments)
        if model.sentence_order is None:
            _require_equal(model.logits(hidden_states), theirs.logits, folder)
        else:
            _require_equal(model.logits(hidden_states), theirs.prediction_logits, folder)
            _require_equal(model.sentence_order(hidden_states), theirs.sop_logits, folder)


def _check_discriminator(discriminator: Discriminator, folder: Path) -> None:
    import torch
    from transformers import AlbertModel

    head = discriminator.sentence_order
    with quiet_transformers():
        stock = AlbertModel.from_pretrained(
            str(folder), local_files_only=True, attn_implementation="sdpa", add_pooling_layer=head is not None
        ).eval()
    ids, mask, segments = _probe(discriminator.config)
    model = discriminator.eval()
    with torch.no_grad():
        theirs = stock(input_ids=ids, attention_mask=mask, token_type_ids=segments)
        ours = model.encode(ids, mask.bool(), segments)
        _require_equal(ours, theirs.last_hidden_state, folder)
        if head is not None:
            _require_equal(head.pooler(ours[:, 0]).tanh(), theirs.pooler_output, folder)


def _check_task_model(model: TaskModel, folder: Path) -> None:
    import torch
    import transformers

    options = {"add_pooling_layer": False} if model.architecture == "AlbertModel" else {}
    with quiet_transformers():
        stock = getattr(transformers, model.architecture).from_pretrained(
            str(folder), local_files_only=True, attn_implementation="sdpa", **options
        )
    ids, mask, segments = _probe(model.config)
    is_nested = model.architecture == "AlbertForMultipleChoice"  # rows stand in questions
    rows = [tensor[None] if is_nested else tensor for tensor in (ids, mask, segments)]
    on_device = [tensor.to(model.output.weight.device) for tensor in (ids, mask.bool(), segments)]
    with torch.no_grad():
        theirs = stock.eval()(input_ids=rows[0], attention_mask=rows[1], token_type_ids=rows[2])
        if model.architecture == "AlbertModel":
            ours, wanted = model.eval().encode(*on_device), theirs.last_hidden_state
        else:
            ours = model.eval()(*on_device)
            is_span = model.head.kind == "span"
            wanted = torch.stack([theirs.start_logits, theirs.end_logits], -1) if is_span else theirs.logits
    _require_equal(ours.cpu().reshape(wanted.shape), wanted, folder)


def _require_equal(ours: Tensor, theirs: Tensor, folder: Path) -> None:
    difference = float((ours - theirs).abs().max()) / max(1.0, float(ours.abs().max()))
    if not difference <= LOGITS_TOLERANCE:
        raise CheckpointError(
            f"{folder.parent} is not written: transformers computes other values than we do (off by {difference:.1e})"
        )


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the exit code."""
    parser = make_parser("python -m electra_albert.apps.export", "Write stock Hugging Face folders out of a run.")
    parser.add_argument("--model", type=str, required=True, help="A run folder or a model folder.")
    parser.add_argument(
        "--kind",
        choices=["generator", "discriminator"],
        default="generator",
        help="generator fills masks, discriminator is the one to fine-tune.",
    )
    parser.add_argument("--output_dir", type=str, required=True, help="Folder to write the model into.")
    parser.add_argument("--format", choices=["safetensors", "pt"], default="safetensors", help="Of the weights.")
    options = parse(parser, argv)
    from electra_albert.model.loading import load_discriminator, load_generator, locate

    kind: Kind = options.kind
    source, folder = Path(options.model), Path(options.output_dir)
    files = locate(source, kind)
    if files.weights.parent.resolve() == folder.resolve():
        raise UsageError(f"{folder} is where the model comes from; choose another --output_dir")
    tokenizer = load_tokenizer(files.tokenizer)
    if kind == "generator":
        export_generator(load_generator(files), tokenizer, folder, options.format)
    else:
        export_discriminator(load_discriminator(files), tokenizer, folder, options.format)
    print(f"wrote the {kind} to {folder}")
    return 0


if __name__ == "__main__":
    raise SystemExit(run_app(main))
