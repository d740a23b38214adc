"""Text to ids: stock's on ordinary text, no special token out of text, offsets of the text as it was given."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from electra_albert.corpus.text_encoder import TextEncoder, cover
from electra_albert.tasks.rows import lay_out, truncate_pair
from tests.corpus.tokenizer_kinds import FAIRSEQ_SPECIALS, PROSE, STOCK_SPECIALS
from tests.tasks.small_tokenizers import encoder, kinds, plain_texts, steady, texts, thorough, tokenizer

SPECIALS = sorted({*STOCK_SPECIALS, *FAIRSEQ_SPECIALS})


@steady
@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 70))
def test_truncation_is_that_of_popping_from_the_longer_text(first: int, second: int, room: int) -> None:
    found = truncate_pair(first, second, room)
    while first + second > room:
        first, second = (first - 1, second) if first > second else (first, second - 1)
    assert found == (first, second)


@pytest.mark.parametrize("kind", ["albert", "bert"])
def test_rows_equal_those_of_the_stock_tokenizer(kind: str) -> None:
    ids = encoder(kind).encode(PROSE[:6])
    pairs = [*zip(ids[:3], ids[3:], strict=True), (ids[0], None)]
    batch = lay_out(encoder(kind), pairs, range(4), None).collate(range(4))
    found = (batch.input_ids, batch.token_type_ids, batch.attention_mask)
    texts = [*zip(PROSE[:3], PROSE[3:6], strict=True), (PROSE[0],)]
    for row, wanted in enumerate(tokenizer(kind)(*text, return_token_type_ids=True) for text in texts):
        for field, name in zip(found, ("input_ids", "token_type_ids", "attention_mask"), strict=True):
            padding = tokenizer(kind).pad_token_id if name == "input_ids" else 0
            wider = [padding] * (field.shape[1] - len(wanted[name]))
            assert field[row].tolist() == wanted[name] + wider, name


@thorough
@given(kinds, plain_texts)
def test_ids_of_ordinary_text_equal_the_stock_tokenizers(kind: str, text: str) -> None:
    assert encoder(kind).encode([text])[0].tolist() == tokenizer(kind)(text, add_special_tokens=False)["input_ids"]


@thorough
@given(kinds, texts, st.sampled_from(SPECIALS))
def test_text_never_becomes_a_special_token(kind: str, text: str, special: str) -> None:
    forbidden = {*tokenizer(kind).all_special_ids} - {tokenizer(kind).unk_token_id}
    for subwords in encoder(kind).encode_with_offsets([text + special, f"{special} {text}{special}"]):
        assert not forbidden & set(subwords.ids.tolist())
        assert len(subwords.ids) == len(subwords.starts) == len(subwords.ends)
    assert subwords.ids.tolist() == encoder(kind).encode([f"{special} {text}{special}"])[0].tolist()


@thorough
@given(kinds, texts)
def test_offsets_lie_in_the_text_in_order_and_begin_with_no_space(kind: str, text: str) -> None:
    (subwords,) = encoder(kind).encode_with_offsets([text])
    assert (subwords.starts <= subwords.ends).all()
    assert (np.diff(subwords.starts) >= 0).all()
    assert (np.diff(subwords.ends) >= 0).all()
    for start, end in zip(subwords.starts.tolist(), subwords.ends.tolist(), strict=True):
        assert 0 <= start <= end <= len(text)
        assert start == end or not text[start].isspace()


@pytest.mark.parametrize("kind", ["albert", "bert", "unigram"])
def test_tokens_are_the_text_at_their_offsets(kind: str) -> None:
    text = "The  old house on\tthe hill, in 1912"
    (subwords,) = encoder(kind).encode_with_offsets([text])
    names = tokenizer(kind).convert_ids_to_tokens(subwords.ids.tolist())
    for name, start, end in zip(names, subwords.starts.tolist(), subwords.ends.tolist(), strict=True):
        bare = name.lstrip("▁").removeprefix("##")
        assert bare in ("", "<unk>", "[UNK]") or bare.lower() == text[start:end].lower()


@pytest.mark.parametrize(
    ("text", "offsets", "wanted"),
    [
        ("a b", [(0, 1), (1, 3)], [(0, 1), (2, 3)]),  # the space before a word
        ("``a''", [(1, 2), (2, 3), (4, 5)], [(0, 2), (2, 3), (3, 5)]),  # a mark of two characters become one
        ("e\u0301 b", [(0, 1), (3, 4)], [(0, 2), (3, 4)]),  # an accent taken away
        ("a  b", [(0, 1), (2, 2), (3, 4)], [(0, 1), (2, 2), (3, 4)]),  # a space's own sign covers no character
    ],
)
def test_characters_a_normaliser_drops_belong_to_a_token_of_their_word(
    text: str, offsets: list[tuple[int, int]], wanted: list[tuple[int, int]]
) -> None:
    assert cover(text, offsets) == wanted


def test_truncation_and_padding_of_the_tokenizer_do_not_act_and_stay_as_they_were() -> None:
    from electra_albert.corpus.tokenizer_training import train_tokenizer

    trained = train_tokenizer(PROSE, 120, do_lower_case=True)
    trained.backend_tokenizer.enable_truncation(3)
    trained.backend_tokenizer.enable_padding(length=99)
    settings = trained.backend_tokenizer.to_str()
    for ids in TextEncoder(trained).encode(PROSE[:2]):
        assert len(ids) > 3
        assert trained.pad_token_id not in ids
    assert trained.backend_tokenizer.to_str() == settings
    assert not trained.backend_tokenizer.encode_special_tokens


@steady
@given(kinds)
def test_the_text_of_a_special_token_is_read_in_subwords_and_not_as_unknown(kind: str) -> None:
    (subwords,) = encoder(kind).encode_with_offsets(["the <pad> house"])
    assert tokenizer(kind).unk_token_id not in subwords.ids.tolist()
    inside = (subwords.starts >= len("the ")) & (subwords.ends <= len("the <pad>")) & (subwords.starts < subwords.ends)
    assert (subwords.ends - subwords.starts)[inside].max() <= len("pad")
