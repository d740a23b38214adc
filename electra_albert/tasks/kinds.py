"""The four kinds of task: how examples become rows, and outputs become predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from electra_albert.tasks import choice, sequence, span, token
from electra_albert.tasks.encoding import Decoded, EncodePlan, TextEncoder
from electra_albert.tasks.examples import Report
from electra_albert.tasks.rows import Rows


class Encode(Protocol):
    """Rows out of the examples of a set. `where` names the set in messages; what is cut is counted in `report`.

    Only in training may examples give further rows, or rows that cannot be learned from be left out.
    """

    def __call__(
        self,
        examples: Sequence[Any],
        encoder: TextEncoder,
        labels: tuple[str, ...],
        plan: EncodePlan,
        report: Report,
        *,
        is_training: bool,
        where: str,
    ) -> Rows: ...


class Kind(NamedTuple):
    """The two ways of a kind: in, and out.

    decode(outputs of each unit, rows, examples, labels, plan) takes rows that were not encoded for training.
    """

    encode: Encode
    decode: Callable[
        [list[NDArray[np.float32]], Rows, Sequence[Any], tuple[str, ...], EncodePlan],
        Decoded,
    ]


KINDS: dict[str, Kind] = {
    "sequence": Kind(sequence.encode, sequence.decode),
    "choice": Kind(choice.encode, choice.decode),
    "span": Kind(span.encode, span.decode),
    "token": Kind(token.encode, token.decode),
}
