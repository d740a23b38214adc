"""What the config.json of a fine-tuned stock model says of its task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from electra_albert.contracts import CheckpointError
from electra_albert.hub.relatives import RELATIVES
from electra_albert.hub.stock_config import shown
from electra_albert.model.task_model import DEFAULT_DROPOUT

_KINDS = {
    "ForSequenceClassification": "sequence",
    "ForMultipleChoice": "choice",
    "ForTokenClassification": "token",
    "ForQuestionAnswering": "span",
}
_UNNAMED = {"0": "LABEL_0", "1": "LABEL_1"}  # what transformers fills in where no label is named


def stock_details(contents: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """Kind, labels and style of the head, as TASK_FILE of a fine-tuned folder of ours gives them.

    Raises CheckpointError, which calls the file `origin`, where it names no task, or one that cannot be read.
    """
    named = contents.get("architectures")
    architecture = named[0] if isinstance(named, list) and named and isinstance(named[0], str) else ""
    kind = next((kind for ending, kind in _KINDS.items() if architecture.endswith(ending)), None)
    if kind is None:
        told = shown(architecture) if architecture else "not given"
        way_out = "fine-tune it first, or name a folder that Finetuning.py wrote"
        raise CheckpointError(f"{origin} names no fine-tuned model (architecture {told}); {way_out}")
    problem = contents.get("problem_type")
    if problem not in (None, "regression", "single_label_classification"):
        raise CheckpointError(f"problem_type={shown(problem)} in {origin} is another task than can be read here")
    labels = _labels(contents.get("id2label", _UNNAMED), origin) if kind in ("sequence", "token") else []
    is_regression = kind == "sequence" and (problem == "regression" or (problem is None and len(labels) == 1))
    if is_regression and len(labels) != 1:
        raise CheckpointError(f"{origin} describes a regression of {len(labels)} numbers; only one can be read")
    return {"kind": kind, "style": "albert", "labels": [] if is_regression else labels, "is_regression": is_regression}


def are_unnamed(labels: Sequence[str]) -> bool:
    """Whether labels are the ones that transformers fills in where nobody names them."""
    return bool(labels) and all(label == f"LABEL_{number}" for number, label in enumerate(labels))


def name_the_labels(labels: Sequence[str]) -> str:
    """The end of a message on a model whose labels have no names."""
    return f"its labels have no names ({', '.join(labels[:2])}, ...); write id2label into its config.json"


def classifier_dropout(contents: Mapping[str, Any]) -> Any:
    """Dropout before the linear layer, as stock takes it: of BERT and ELECTRA, where not given, that of the encoder."""
    if contents.get("model_type") in RELATIVES:
        given = contents.get("classifier_dropout")
        return contents.get("hidden_dropout_prob", 0.1) if given is None else given
    given = contents.get("classifier_dropout_prob")
    return DEFAULT_DROPOUT if given is None else given


def _labels(names: object, origin: str) -> list[str]:
    """The labels by their numbers, which must be 0 to C - 1."""
    numbered = dict(names) if isinstance(names, Mapping) else {}
    labels = [numbered.get(str(number)) for number in range(len(numbered))]
    if not labels or not all(isinstance(label, str) for label in labels):
        raise CheckpointError(f"id2label in {origin} does not name the labels 0 to {max(0, len(labels) - 1)}")
    return [str(label) for label in labels]
