"""The texts of tokens, as they are displayed."""

from typing import NamedTuple

from electra_albert.tokenization.tokenizer import WORD_START, Tokenizer, special_ids


class TokenText(NamedTuple):
    """The text of a token for display."""

    text: str
    starts_word: bool


def word_starts(tokenizer: Tokenizer) -> list[bool]:
    """Whether each token of the vocabulary starts a word wherever it is, by ▁, Ġ or no ##."""
    ids = []
    for token_id in range(len(tokenizer)):
        ids += [tokenizer.mask_token_id, token_id]  # [MASK] hides the token before
    return [token.starts_word for token in token_texts(tokenizer, ids)[1::2]]


def token_texts(tokenizer: Tokenizer, ids: list[int]) -> list[TokenText]:
    """The text of each token without ## or ▁, and whether it starts a word.

    Any token does after [CLS], [SEP] and padding.
    """
    backend = tokenizer.backend_tokenizer
    special = special_ids(tokenizer)
    borders = (special.cls, special.sep, special.pad)
    model = type(backend.model).__name__
    is_bytes = type(backend.decoder).__name__ == "ByteLevel"
    texts = []
    follows_border = True
    for token_id, token in zip(ids, tokenizer.convert_ids_to_tokens(ids), strict=True):
        if token_id in (*borders, special.mask) or model == "WordLevel":
            text = token
            starts_word = True
        elif model == "WordPiece":
            text = token.removeprefix("##")
            starts_word = text == token
        elif is_bytes:
            text = backend.decoder.decode([token]).removeprefix(" ")
            starts_word = token.startswith("Ġ")
        else:
            text = token.removeprefix(WORD_START)
            starts_word = text != token
        texts.append(TokenText(text or token, starts_word or follows_border))
        follows_border = token_id in borders
    return texts
