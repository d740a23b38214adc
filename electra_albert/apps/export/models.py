"""Models of each kind as stock Hugging Face folders."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from electra_albert.apps.export.folder import Form, publish

if TYPE_CHECKING:
    from electra_albert.apps.export.model_card import Facts
    from electra_albert.model.electra import Discriminator, Generator
    from electra_albert.model.encoder import Body
    from electra_albert.model.task_model import TaskModel

_NUMBER_LABEL = "score"  # the one output of a regression


def generator_architecture(generator: Generator) -> str:
    """The stock class that computes all heads of a generator."""
    return "AlbertForMaskedLM" if generator.sentence_order is None else "AlbertForPreTraining"


def export_generator(
    generator: Generator, tokenizer: Any, folder: Path, file_format: str = "safetensors", facts: Facts | None = None
) -> None:
    """Write a folder that `AutoModelForMaskedLM` and `pipeline("fill-mask")` load.

    One with a sentence-order head is loaded by `AutoModelForPreTraining` too. Raises CheckpointError where stock
    classes compute other values, UsageError where the folder cannot be written.
    """
    publish(folder, generator, tokenizer, Form(generator_architecture(generator), file_format, facts=facts))


def export_discriminator(
    discriminator: Discriminator,
    tokenizer: Any,
    folder: Path,
    file_format: str = "safetensors",
    facts: Facts | None = None,
) -> None:
    """Write a folder whose encoder `AutoModel` loads; the detection head goes along under ELECTRA's own names.

    Raises as export_generator does.
    """
    publish(folder, discriminator, tokenizer, Form("AlbertModel", file_format, facts=facts))


def export_body(body: Body, tokenizer: Any, folder: Path, file_format: str = "safetensors") -> None:
    """Write a folder that `AutoModel` loads, with the pooler where there is one. Raises as export_generator does."""
    publish(folder, body, tokenizer, Form("AlbertModel", file_format))


def export_task_model(
    model: TaskModel,
    tokenizer: Any,
    folder: Path,
    details: Mapping[str, Any],
    file_format: str = "safetensors",
    facts: Facts | None = None,
) -> None:
    """Write a folder that `AutoModelForSequenceClassification` or its sibling loads, with names for the labels.

    A head of style electra has no stock class: `AutoModel` loads the encoder, `load_task_model` all of it. `details`
    are kept for `load_task_model`; of them labels (and is_regression) must describe the model's head, else ValueError.
    Raises as export_generator does. Leaves the model in eval mode.
    """
    from electra_albert.hub.load import head_of

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
    publish(folder, model, tokenizer, Form(model.architecture, file_format, settings, details, facts))
