"""A fine-tuned model, and the path from examples to predictions.

examples   a long passage and a short one
features   windows 1 and 2 of the first, and the second           FineTuned.encode
batches    of features, in any order, padded to the longest one
outputs    an array [tokens, ...] for each of the 3 features      outputs_by_feature
decoded    a prediction for each of the 2 examples                FineTuned.decode
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from electra_albert.contracts import Batch, CheckpointError
from electra_albert.finetuning_config import TuningConfig
from electra_albert.hub.load import Stored, build, read_task
from electra_albert.model.task_model import TaskModel
from electra_albert.tasks.encoding import (
    Decoded,
    EncodedExamples,
    EncodePlan,
    Encoding,
    Outputs,
    split_outputs,
    trained_plan,
)
from electra_albert.tasks.kinds import KINDS
from electra_albert.tasks.task import Report
from electra_albert.tokenization.text_encoder import TextEncoder


class FineTuned(NamedTuple):
    """A fine-tuned model in eval mode with its tokenizer, labels and encoding options."""

    model: TaskModel
    text_encoder: TextEncoder
    labels: tuple[str, ...]
    plan: EncodePlan
    takes_pairs: bool | None = None  # None if the folder does not record it

    def encode(self, examples: Sequence[Any], report: Report, set_name: str) -> EncodedExamples:
        """Encode examples without labels; what is truncated goes into the report."""
        encoding = Encoding(self.text_encoder, self.labels, self.plan, report, set_name)
        return KINDS[self.model.head.kind].encode(examples, encoding)

    def decode(
        self, outputs: Outputs, features: EncodedExamples, examples: Sequence[Any]
    ) -> Decoded:
        """The prediction for each example from the outputs of its features."""
        decode = KINDS[self.model.head.kind].decode
        return decode(outputs, features, examples, self.labels, self.plan)


def load_fine_tuned(stored: Stored, tokenizer: Any) -> FineTuned | str:
    """Build the fine-tuned model; returns the reason as a str if its files hold none."""
    try:
        details, head = read_task(stored.files)
        model = build(stored, TaskModel, head)
    except CheckpointError as error:
        return str(error)
    usual = TuningConfig()
    longest = model.config.max_position_embeddings
    plan = trained_plan(EncodePlan(longest, usual.doc_stride, usual.max_answer_length), details)
    plan = plan._replace(max_seq_length=min(plan.max_seq_length, longest))
    takes_pairs = bool(details["columns"]["pair"]) if "columns" in details else None
    return FineTuned(model, TextEncoder(tokenizer), tuple(details["labels"]), plan, takes_pairs)


def outputs_by_feature(
    features: EncodedExamples, batches: Iterable[Batch], compute: Callable[[Batch], Tensor]
) -> dict[int, NDArray[np.float32]]:
    """Outputs without padding by the index of the feature; compute: those of a batch [B, ...]."""
    outputs: dict[int, NDArray[np.float32]] = {}
    for batch in batches:
        indices = batch.example_id[:: features.num_choices].numpy()
        padded = compute(batch).float().cpu().numpy()
        outputs |= zip(indices.tolist(), split_outputs(padded, indices, features), strict=True)
    return outputs
