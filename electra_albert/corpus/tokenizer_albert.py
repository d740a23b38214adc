"""ALBERT's own layout: special pieces at ids 0 to 4, and the pipeline stock transformers gives every such vocabulary.

Normaliser and pre-tokenizer are those `AlbertTokenizer` rebuilds whatever a file says, so ids found here are the ids
`AutoTokenizer` finds in an exported folder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import AlbertTokenizer

SPECIAL_PIECES = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")  # ids 0 to 4
UNK_ID, MASK_ID = SPECIAL_PIECES.index("<unk>"), SPECIAL_PIECES.index("[MASK]")
MODEL_INPUT_NAMES = ["input_ids", "token_type_ids", "attention_mask"]  # stock leaves token_type_ids out
WORD_START = "▁"


def has_albert_layout(pieces: list[str], unknown_id: object) -> bool:
    """Whether the special pieces stand where AlbertTokenizer expects them."""
    return tuple(pieces[: len(SPECIAL_PIECES)]) == SPECIAL_PIECES and unknown_id == UNK_ID


def build_albert(vocab: list[tuple[str, float]], options: dict[str, Any]) -> AlbertTokenizer:
    """The stock tokenizer of a checked vocabulary of (piece, score); options as AlbertTokenizer names them."""
    from transformers import AlbertTokenizer

    return AlbertTokenizer(vocab=vocab, model_input_names=MODEL_INPUT_NAMES, **options)
