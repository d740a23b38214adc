"""Rows of a token table that belong to no piece of the tokenizer, as folders have whose table was rounded up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from electra_albert.contracts import CheckpointError
from electra_albert.hub.fill import ROWS_BY_TOKEN, resize_vocabulary
from electra_albert.hub.load import Stored


def without_spare_rows(
    stored: Stored, pieces: int, tokenizer: Path, way_out: str, fitting_rows: int | None = None
) -> Stored:
    """The model without the rows behind the tokenizer's `pieces`; the same where there are none.

    So nothing but a piece is ever guessed, and probabilities are those among the pieces. Raises CheckpointError where
    there are fewer rows than pieces, and where spare ones do not make `fitting_rows` in all, if that is told.
    `tokenizer` is the folder the pieces come from, `way_out` what to do then.
    """
    rows = stored.config.vocab_size
    if rows < pieces or (fitting_rows is not None and rows not in (pieces, fitting_rows)):
        raise CheckpointError(f"the tokenizer in {tokenizer} has {pieces} pieces, the model {rows}; {way_out}")
    by_piece = [stored.tensors[name] for name in ROWS_BY_TOKEN if name in stored.tensors]
    if pieces == rows or any(tensor.shape[:1] != (rows,) for tensor in by_piece):
        return stored  # a file that does not match its configuration is refused with the sizes it has
    kept = resize_vocabulary(stored.tensors, pieces, [])
    return stored._replace(config=replace(stored.config, vocab_size=pieces), tensors=kept)
