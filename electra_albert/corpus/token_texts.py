"""The texts of tokens, as they are displayed."""

from typing import NamedTuple

from electra_albert.corpus.tokenizer import WORD_START, Tokenizer, special_ids


class TokenText(NamedTuple):
    """The text of a token for display."""

    text: str
    starts_word: bool


def word_starts(tokenizer: Tokenizer) -> list[bool]:
    """Whether each token of the vocabulary starts a word wherever it is: by ▁ or Ġ, or with WordPiece by no ##."""
    ids = [number for token in range(len(tokenizer)) for number in (tokenizer.mask_token_id, token)]
    return [text.starts_word for text in token_texts(tokenizer, ids)[1::2]]  # [MASK] hides the token before


def token_texts(tokenizer: Tokenizer, ids: list[int]) -> list[TokenText]:
    """The text of each token without ## or ▁, and whether it starts a word, as after [CLS], [SEP] and padding."""
    backend, special = tokenizer.backend_tokenizer, special_ids(tokenizer)
    model, is_bytes = type(backend.model).__name__, type(backend.decoder).__name__ == "ByteLevel"
    borders = {special.cls, special.sep, special.pad}
    described, is_start = [], True
    for number, token in zip(ids, tokenizer.convert_ids_to_tokens(ids), strict=True):
        if number in borders or number == special.mask or model == "WordLevel":
            text, starts_word = token, True
        elif model == "WordPiece":
            text, starts_word = token.removeprefix("##"), is_start or not token.startswith("##")
        else:
            text = backend.decoder.decode([token]).removeprefix(" ") if is_bytes else token.removeprefix(WORD_START)
            starts_word = is_start or token.startswith("Ġ" if is_bytes else WORD_START)
        described.append(TokenText(text or token, starts_word))
        is_start = number in borders
    return described
