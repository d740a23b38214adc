"""Losses, encoding, submissions and tables by kind. B batch, L length, C classes, F features."""

import json
import math
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra_albert.contracts import IGNORED_LABEL, Batch, DataError, DivergedError, Term
from electra_albert.files import write_text
from electra_albert.model.task_model import TaskModel
from electra_albert.tasks import registry, sequence, span, token
from electra_albert.tasks.encoding import Decoded, EncodedExamples, EncodePlan, Encoding, Outputs
from electra_albert.tasks.task import Examples, SequenceExample, SpanExample, Task, TokenExample

NO_ANSWER_FILE = "na_prob.json"
Predictions = Sequence[Any]
PREDICTIONS_HEADER = "id\tgold\tpredicted\t"
_MAX_CHARACTERS = 500  # of a text in a table of predictions
# Sums over labels: loss [] float32, correct predictions [] int64 (None for a regression).
_Sums = tuple[Tensor, Tensor | None]


def _classification_loss(logits: Tensor, labels: Tensor, weight: Tensor | None = None) -> _Sums:
    """Cross-entropy in nats. logits [..., C], labels int64 [...], weight of classes float32 [C]."""
    logits = logits.flatten(0, -2)
    labels = labels.flatten()
    loss = F.cross_entropy(logits, labels, weight, ignore_index=IGNORED_LABEL, reduction="sum")
    is_correct = logits.argmax(-1) == labels
    return loss, is_correct.sum()


def _choice_loss(outputs: Tensor, labels: Tensor) -> _Sums:
    """Cross-entropy over the options. outputs [B, 1], one logit per option; labels int64 [F]."""
    logits = outputs.view(len(labels), -1)  # [F, options]
    return _classification_loss(logits, labels)


def _regression_loss(outputs: Tensor, labels: Tensor) -> _Sums:
    """Squared error. outputs [B, 1], labels float32 [B]."""
    errors = outputs.squeeze(-1) - labels
    return errors.square().sum(), None


def _multi_label_loss(outputs: Tensor, labels: Tensor) -> _Sums:
    """Mean over labels of the binary cross-entropies. outputs and labels float32 [B, C]."""
    losses = F.binary_cross_entropy_with_logits(outputs, labels, reduction="none")
    is_correct = (outputs > 0) == (labels > 0)
    return losses.mean(-1).sum(), is_correct.all(-1).sum()


def _span_loss(outputs: Tensor, labels: Tensor) -> _Sums:
    """Mean of the cross-entropies of start and end. outputs [B, L, 2], labels int64 [B, 2]."""
    logits = outputs.transpose(-1, -2).flatten(0, -2)  # [B · 2, L]
    loss = F.cross_entropy(logits, labels.flatten(), reduction="sum") / 2
    is_correct = outputs.argmax(1) == labels  # [B, 2]
    return loss, is_correct.all(-1).sum()


def _labels_file(task: Task, predictions: Predictions, examples: Examples) -> str:
    ids = [example.identity for example in examples]
    # GLUE requires unique numbers as index; if the file has none, examples are numbered.
    # Other tasks keep their ids.
    are_unique = len(set(ids)) == len(ids)
    is_index = are_unique and all(map(str.isdecimal, ids))
    if task.name in registry.GLUE and not is_index:
        ids = list(map(str, range(len(ids))))
    if task.is_regression:
        if not all(map(math.isfinite, predictions)):
            raise DivergedError(f"a prediction of {task.name} is not finite")
        low, high = task.score_range or (-math.inf, math.inf)
        form = ".3f" if task.score_range else ".6g"
        texts = [format(min(max(number, low), high), form) for number in predictions]
    else:
        texts = list(map(_label_text, predictions, examples))
    return "index\tprediction\n" + _cells(ids, texts)


def _answers_file(task: Task, predictions: Sequence[str | float], examples: Examples) -> str:
    ids = [example.identity for example in examples]
    answers = dict(zip(ids, predictions, strict=True))
    if len(answers) < len(ids):
        twice, _ = Counter(ids).most_common(1)[0]
        raise DataError(f"two questions have the id {twice}; give each its own for the submission")
    return json.dumps(answers, ensure_ascii=False, indent=1) + "\n"


def _tags_file(task: Task, predictions: Predictions, examples: Examples) -> str:
    content = ""
    for example, tags in zip(examples, predictions, strict=True):
        content += _cells(example.words, tags) + "\n"
    return content


def _cells(first: Sequence[str], second: Sequence[str]) -> str:
    """Lines of two columns separated by a tab."""
    lines = ""
    for cells in zip(first, second, strict=True):
        for cell in cells:
            if not {*"\t\n\r"}.isdisjoint(cell):
                raise DataError(
                    f"{cell!r} holds a tab or a line break, invalid in a table; "
                    "correct the file or the label"
                )
        lines += "\t".join(cells) + "\n"
    return lines


class Kind(NamedTuple):
    """Functions for one kind of task; `decode` is never given training features."""

    encode: Callable[[Examples, Encoding], EncodedExamples]
    decode: Callable[[Outputs, EncodedExamples, Examples, tuple[str, ...], EncodePlan], Decoded]
    term: str  # name of the loss
    loss: Callable[..., _Sums]
    file: Callable[[Task, Predictions, Examples], str]  # the content of a submission


KINDS = {
    "sequence": Kind(
        sequence.encode, sequence.decode, "classification_loss", _classification_loss, _labels_file
    ),
    "choice": Kind(
        sequence.encode_choices, sequence.decode_choices, "choice_loss", _choice_loss, _labels_file
    ),
    "span": Kind(span.encode, span.decode, "span_loss", _span_loss, _answers_file),
    "token": Kind(token.encode, token.decode, "tag_loss", _classification_loss, _tags_file),
}
_TEXTS = KINDS["sequence"]
_WITHOUT_CLASSES = {  # texts, by measure
    "regression": _TEXTS._replace(term="regression_loss", loss=_regression_loss),
    "multi_label": _TEXTS._replace(term="multi_label_loss", loss=_multi_label_loss),
}


def write_submission(
    task: Task, test_name: str, decoded: Decoded, examples: Examples, folder: Path
) -> Path:
    """Write the submission file of one test set and return its path.

    For SQuAD 2.0 write the no-answer probabilities too.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (task.submission or f"{test_name}.tsv")
    write_text(path, KINDS[task.kind].file(task, decoded.predictions, examples))
    if task.kind == "span" and decoded.probabilities is not None:
        write_text(folder / NO_ANSWER_FILE, _answers_file(task, decoded.probabilities, examples))
    return path


def predictions_table(
    examples: Examples, predictions: Predictions, probabilities: Sequence[Any] | None
) -> str:
    """One line per example: id, gold label, prediction, probability and text.

    The probability is that of the prediction, or a float that of no answer; a multi-label task has
    those of all its labels. With tabs as spaces:

        id    gold    predicted    probability    text
        7     pos     neg          0.6000         A good film
    """
    scores = probabilities or [None] * len(examples)
    name = "probability"
    if scores and isinstance(scores[0], float):
        name = "no_answer"
    lines = [f"{PREDICTIONS_HEADER}{name}\ttext"]
    for example, prediction, score in zip(examples, predictions, scores, strict=True):
        gold, text = _gold_and_text(example)
        text = _one_line(text)
        if len(text) > _MAX_CHARACTERS:
            text = f"{text[:_MAX_CHARACTERS]} …"
        if isinstance(score, float):
            score = [score]
        elif score and not isinstance(prediction, list):
            score = [max(score)]
        shares = ",".join(f"{share:.4f}" for share in score or ())
        cells = (example.identity, gold, _label_text(prediction, example), shares)
        lines.append("\t".join([*map(_one_line, cells), text]))
    return "\n".join(lines) + "\n"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _label_text(label: Any, example: Any) -> str:
    """A gold label or a prediction of an example as text."""
    if label is None:
        return ""
    if isinstance(label, int):  # of an option
        return string.ascii_uppercase[label]
    if isinstance(label, float):
        return f"{label:.6g}"
    if isinstance(label, list | tuple):
        separator = " " if isinstance(example, TokenExample) else ","
        return separator.join(label)
    return str(label)


def _gold_and_text(example: Any) -> tuple[str, str]:
    match example:
        case SequenceExample():
            text = example.text
            if example.text_pair is not None:
                text += f" ||| {example.text_pair}"
            return _label_text(example.label, example), text
        case TokenExample():
            return _label_text(example.tags, example), " ".join(example.words)
        case SpanExample():
            answers = [answer.text for answer in example.answers or ()]
            gold = " / ".join(dict.fromkeys(answers))
        case _:
            gold = _label_text(example.label, example)
    return gold, f"{example.question} ||| {example.context}"


def confusion_table(labels: Sequence[str], examples: Examples, predictions: Predictions) -> str:
    """Confusion matrix of texts or words: gold labels in rows, predicted labels in columns."""
    from sklearn.metrics import confusion_matrix

    gold: list[str] = []
    predicted = []
    for example, prediction in zip(examples, predictions, strict=True):
        if isinstance(example, TokenExample):
            gold += example.tags or ()
            predicted += prediction
        else:
            gold.append(example.label)
            predicted.append(prediction)
    counts = confusion_matrix(gold, predicted, labels=labels)
    names = list(map(_one_line, labels))
    lines = ["\t".join(["gold \\ predicted", *names])]
    for name, row in zip(names, counts, strict=True):
        lines.append("\t".join([name, *map(str, row)]))
    return "\n".join(lines) + "\n"


class TaskObjective(nn.Module):
    """A contracts.Objective on labelled batches: one loss and, except for regressions, an accuracy.

    measure: the name in metrics.MEASURES, which decides on the loss of texts.
    class_weights float32 [C], with mean 1 over the training examples, weight the loss in training
    mode only.
    """

    class_weights: Tensor | None

    def __init__(
        self, model: TaskModel, measure: str = "", class_weights: Tensor | None = None
    ) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("class_weights", class_weights, persistent=False)
        self._kind = _WITHOUT_CLASSES.get(measure) or KINDS[model.head.kind]
        self.weights: Mapping[str, float] = {self._kind.term: 1.0}

    def counts(self, batch: Batch) -> dict[str, int]:
        """The divisor of the loss, computed on the host."""
        return {self._kind.term: int(self._count(batch))}

    def forward(self, batch: Batch) -> dict[str, Term]:
        """Terms of a labelled batch."""
        return self.terms(self.outputs(batch), batch)

    def outputs(self, batch: Batch) -> Tensor:
        """The model's outputs, float32 [B, ...]; span logits at padding are the lowest float."""
        mask = batch.attention_mask
        outputs: Tensor = self.model(batch.input_ids, mask, batch.token_type_ids)
        if self.model.head.kind == "span":
            outputs = outputs.masked_fill(~mask[:, :, None], torch.finfo(outputs.dtype).min)
        return outputs

    def terms(self, outputs: Tensor, batch: Batch) -> dict[str, Term]:
        """Loss and accuracy of outputs [B, ...]."""
        count = self._count(batch)
        inputs = [outputs, batch.labels]
        if self.training and self.class_weights is not None:
            inputs.append(self.class_weights)
        losses, correct = self._kind.loss(*inputs)
        terms = {self._kind.term: Term(losses, count)}
        if correct is not None:
            terms["accuracy"] = Term(correct.float(), count)
        return terms

    def _count(self, batch: Batch) -> Tensor:
        """The divisor of the loss, [] int64: labels that are not ignored, else all features."""
        labels = batch.labels
        assert labels is not None, "a batch without labels has no loss"
        if self._kind.loss is _classification_loss:
            return (labels != IGNORED_LABEL).sum()
        return torch.full((), len(labels), dtype=torch.int64, device=labels.device)
