"""Texts a program hands over, as rows of tokens, and batches of rows of similar length.

Dimensions: B batch, L length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from electra_albert.config import ModelConfig
from electra_albert.contracts import DataError, UsageError
from electra_albert.corpus.tokenizer import describe_pieces
from electra_albert.inference.checks import Text, name_of
from electra_albert.inference.fill_mask import check_length, shorten
from electra_albert.inference.splice import spans_of
from electra_albert.tasks.encoding import truncate_pair

if TYPE_CHECKING:
    from tokenizers import Encoding


class Row(NamedTuple):
    """One text, or one pair, as the model reads it: special tokens included."""

    ids: list[int]
    types: list[int]
    text_places: list[int]  # of tokens but [CLS], [SEP], padding and masks, even where the text itself holds those
    text: Text
    encoding: Encoding  # knows the characters of each token


class PaddedRows(NamedTuple):
    """Rows of one batch, on the model's device."""

    input_ids: Tensor  # int64 [B, L]
    attention_mask: Tensor  # bool [B, L]
    token_type_ids: Tensor  # int64 [B, L]


def target_ids(tokenizer: Any, targets: Sequence[str]) -> list[int]:
    """The tokens a caller means; UsageError for one that is no piece of the vocabulary and is cut into several."""
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    found: dict[int, None] = {}
    for target in targets:
        ids = [vocabulary[target]] if target in vocabulary else encode_all(tokenizer, [target], is_bare=True)[0].ids
        if len(ids) != 1:
            pieces = " ".join(tokenizer.convert_ids_to_tokens(ids)) or "nothing"
            raise UsageError(f"target {shorten(target)!r} is no token: it is cut into {pieces}; give a piece")
        found[ids[0]] = None
    return list(found)


def read_rows(
    tokenizer: Any, texts: Sequence[Text], config: ModelConfig, given: object, *, truncate: bool = False
) -> list[Row]:
    """The rows of checked texts for a model of this shape; `given` is what the caller handed over.

    A text of more tokens than the model reads is cut where `truncate` is set, else DataError is raised; UsageError for
    a pair where it knows no segments.
    """
    longest = config.max_position_embeddings
    borders = {tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id, tokenizer.mask_token_id}
    rows = []
    for index, (text, encoding) in enumerate(zip(texts, encode_all(tokenizer, texts), strict=True)):
        if truncate and len(encoding.ids) > longest:
            encoding = _cut(tokenizer, text, longest)
        ids, types = encoding.ids, encoding.type_ids
        try:
            check_length(text if isinstance(text, str) else " ".join(text), len(ids), longest)
        except DataError as error:
            raise DataError(f"{name_of(given, index)}{error} or give truncate=True") from None
        if max(types, default=0) >= config.type_vocab_size:
            raise UsageError(
                f"{name_of(given, index)}the model knows one segment and reads no pairs; give single texts"
            )
        rows.append(Row(ids, types, [place for place, token in enumerate(ids) if token not in borders], text, encoding))
    return rows


def _cut(tokenizer: Any, text: Text, longest: int) -> Encoding:
    """The first `longest` tokens of a text; of a pair the longer text gives its last tokens, until both fit."""
    parts = encode_all(tokenizer, [text] if isinstance(text, str) else list(text), is_bare=True)
    room = max(0, longest - tokenizer.backend_tokenizer.num_special_tokens_to_add(len(parts) == 2))
    lengths = truncate_pair(len(parts[0]), len(parts[1]), room) if len(parts) == 2 else (room,)
    for part, length in zip(parts, lengths, strict=True):
        part.truncate(length)
    found: Encoding = tokenizer.backend_tokenizer.post_process(*parts)
    return found


def encode_all(tokenizer: Any, texts: Sequence[Text], *, is_bare: bool = False) -> list[Encoding]:
    """The texts' tokens, bare or with [CLS] and [SEP]. Changes nothing in the tokenizer, which threads may share."""
    backend = tokenizer.backend_tokenizer
    encodings: list[Encoding] = backend.encode_batch(list(texts), add_special_tokens=not is_bare)
    return encodings


def spans_of_row(tokenizer: Any, row: Row) -> list[tuple[int, int]]:
    """The characters of each token in the text it comes from; (0, 0) for the special ones around the texts."""
    described = describe_pieces(tokenizer, row.ids)
    spans = [(0, 0)] * len(row.ids)
    for number, text in enumerate((row.text,) if isinstance(row.text, str) else row.text):
        places = [place for place, owner in enumerate(row.encoding.sequence_ids) if owner == number]
        offsets = [row.encoding.offsets[place] for place in places]
        for place, span in zip(places, spans_of(text, [described[place] for place in places], offsets), strict=True):
            spans[place] = span
    return spans


def batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Indices of rows of similar length, no more than `batch_tokens` a batch with padding, but one row at least."""
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and (len(batch) + 1) * lengths[index] > batch_tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def pad(rows: Sequence[Row], pad_id: int, device: torch.device) -> PaddedRows:
    """The rows side by side, padded at their ends."""
    longest = max(len(row.ids) for row in rows)
    lengths = torch.tensor([len(row.ids) for row in rows])
    ids = torch.tensor([row.ids + [pad_id] * (longest - len(row.ids)) for row in rows])  # [B, L]
    types = torch.tensor([row.types + [0] * (longest - len(row.types)) for row in rows])  # [B, L]
    is_real = torch.arange(longest) < lengths[:, None]  # [B, L]
    return PaddedRows(ids.to(device), is_real.to(device), types.to(device))
