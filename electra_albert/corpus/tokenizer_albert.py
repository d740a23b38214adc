"""ALBERT's own layout: special pieces at ids 0 to 4, with ALBERT's published pipeline or one safe for every script.

The published normalizer is the one `AlbertTokenizer` rebuilds whatever a file says; it removes every combining mark,
and many scripts write vowels and tones with them. The other normalizer is saved in a tokenizer.json of the class
PreTrainedTokenizerFast. So ids found here are the ids `AutoTokenizer` finds in an exported folder.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from electra_albert.corpus.tokenizer_files import ROLES

if TYPE_CHECKING:
    from tokenizers.normalizers import Normalizer
    from transformers import AlbertTokenizer, PreTrainedTokenizerFast

SPECIAL_PIECES = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")  # ids 0 to 4
UNK_ID, MASK_ID = SPECIAL_PIECES.index("<unk>"), SPECIAL_PIECES.index("[MASK]")
MODEL_INPUT_NAMES = ["input_ids", "token_type_ids", "attention_mask"]  # stock leaves token_type_ids out
WORD_START = "▁"
# Marks after a Latin letter, a space (NFKD makes both of ´) or nothing: the beginning of a word is as that of the text.
LATIN_MARKS = r"(?<![^\p{Latin}\s])\p{M}+"


def has_albert_layout(pieces: list[str], unknown_id: object) -> bool:
    """Whether the special pieces stand where AlbertTokenizer expects them."""
    return tuple(pieces[: len(SPECIAL_PIECES)]) == SPECIAL_PIECES and unknown_id == UNK_ID


def build_albert(vocab: list[tuple[str, float]], options: dict[str, Any]) -> AlbertTokenizer:
    """The stock tokenizer of a checked vocabulary of (piece, score); options as AlbertTokenizer names them."""
    from transformers import AlbertTokenizer

    return AlbertTokenizer(vocab=vocab, model_input_names=MODEL_INPUT_NAMES, **options)


def script_safe_normalizer(do_lower_case: bool, keep_accents: bool) -> Normalizer:
    """ALBERT's quotes, then NFC; unless accents are kept, NFKD and the marks of Latin letters removed before that."""
    from tokenizers import Regex, normalizers

    quotes = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    strip = [] if keep_accents else [normalizers.NFKD(), normalizers.Replace(Regex(LATIN_MARKS), "")]
    case = [normalizers.Lowercase()] if do_lower_case else []
    return normalizers.Sequence([*quotes, *strip, normalizers.NFC(), *case])


def build_script_safe(
    vocab: list[tuple[str, float]], do_lower_case: bool, keep_accents: bool
) -> PreTrainedTokenizerFast:
    """A stock tokenizer of a checked vocabulary that removes the marks of Latin letters at most."""
    from transformers import PreTrainedTokenizerFast

    albert = build_albert(vocab, {})
    backend = albert.backend_tokenizer
    backend.normalizer = script_safe_normalizer(do_lower_case, keep_accents)
    roles = {role: getattr(albert, role) for role in ROLES}
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_input_names=MODEL_INPUT_NAMES, **roles)


def script_safe_options(content: dict[str, Any]) -> dict[str, bool] | None:
    """do_lower_case and keep_accents of a tokenizer.json that `build_script_safe` made; None of any other."""
    from transformers import AlbertTokenizer

    if content.get("pre_tokenizer") != _state(AlbertTokenizer().backend_tokenizer.pre_tokenizer):
        return None
    for do_lower_case in (True, False):
        for keep_accents in (True, False):
            if content.get("normalizer") == _state(script_safe_normalizer(do_lower_case, keep_accents)):
                return {"do_lower_case": do_lower_case, "keep_accents": keep_accents}
    return None


def _state(part: Any) -> Any:
    return json.loads(part.__getstate__())
