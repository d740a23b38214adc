"""Text to ids: stock's on ordinary text, no special token out of text, offsets of the text as it was given."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from electra_albert.tasks.encoding import TextEncoder, cover, lay_out, truncate_pair
from electra_albert.tasks.rows import Rows
from tests.corpus.tokenizer_kinds import FAIRSEQ_SPECIALS, PROSE, STOCK_SPECIALS
from tests.tasks.small_tokenizers import KINDS, encoder, plain_texts, steady, texts, tokenizer

SPECIALS = sorted({*STOCK_SPECIALS, *FAIRSEQ_SPECIALS})


def popped_one_by_one(first: int, second: int, room: int) -> tuple[int, int]:
    while first + second > room:
        if first > second:
            first -= 1
        else:
            second -= 1
    return first, second


@steady
@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 70))
def test_truncation_is_that_of_popping_from_the_longer_text(first: int, second: int, room: int) -> None:
    assert truncate_pair(first, second, room) == popped_one_by_one(first, second, room)


@pytest.mark.parametrize("kind", ["albert", "albert cased", "bert"])
def test_rows_equal_those_of_the_stock_tokenizer(kind: str) -> None:
    ids = encoder(kind).encode(PROSE[:6])
    layout = lay_out(encoder(kind), [*zip(ids[:3], ids[3:], strict=True), (ids[0], None)])
    batch = Rows(*layout, np.arange(4), None, encoder(kind).pad_id).collate(range(4))
    found = (batch.input_ids, batch.token_type_ids, batch.attention_mask)
    texts = [*zip(PROSE[:3], PROSE[3:6], strict=True), (PROSE[0],)]
    for row, wanted in enumerate(tokenizer(kind)(*text, return_token_type_ids=True) for text in texts):
        for field, name in zip(found, ("input_ids", "token_type_ids", "attention_mask"), strict=True):
            padding = tokenizer(kind).pad_token_id if name == "input_ids" else 0
            wider = [padding] * (field.shape[1] - len(wanted[name]))
            assert field[row].tolist() == wanted[name] + wider, name


@pytest.mark.parametrize("kind", KINDS)
@steady
@given(text=plain_texts)
def test_ids_of_ordinary_text_equal_the_stock_tokenizers(kind: str, text: str) -> None:
    assert encoder(kind).encode([text])[0].tolist() == tokenizer(kind)(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("kind", KINDS)
@steady
@given(text=texts, special=st.sampled_from(SPECIALS))
def test_text_never_becomes_a_special_token(kind: str, text: str, special: str) -> None:
    forbidden = {*tokenizer(kind).all_special_ids} - {tokenizer(kind).unk_token_id}
    for pieces in encoder(kind).encode_with_offsets([text + special, f"{special} {text}{special}"]):
        assert not forbidden & set(pieces.ids.tolist())
        assert len(pieces.ids) == len(pieces.starts) == len(pieces.ends)
    assert pieces.ids.tolist() == encoder(kind).encode([f"{special} {text}{special}"])[0].tolist()


@pytest.mark.parametrize("kind", KINDS)
@steady
@given(text=texts)
def test_offsets_lie_in_the_text_in_order_and_begin_with_no_space(kind: str, text: str) -> None:
    (pieces,) = encoder(kind).encode_with_offsets([text])
    assert (pieces.starts <= pieces.ends).all()
    assert (np.diff(pieces.starts) >= 0).all()
    assert (np.diff(pieces.ends) >= 0).all()
    for start, end in zip(pieces.starts.tolist(), pieces.ends.tolist(), strict=True):
        assert 0 <= start <= end <= len(text)
        assert start == end or not text[start].isspace()


@pytest.mark.parametrize("kind", ["albert", "albert cased", "bert", "unigram"])
def test_pieces_are_the_text_at_their_offsets(kind: str) -> None:
    text = "The  old house on\tthe hill, in 1912"
    (pieces,) = encoder(kind).encode_with_offsets([text])
    names = tokenizer(kind).convert_ids_to_tokens(pieces.ids.tolist())
    for name, start, end in zip(names, pieces.starts.tolist(), pieces.ends.tolist(), strict=True):
        bare = name.lstrip("▁").removeprefix("##")
        assert bare in ("", "<unk>", "[UNK]") or bare.lower() == text[start:end].lower()


@pytest.mark.parametrize(
    ("text", "offsets", "wanted"),
    [
        ("a b", [(0, 1), (1, 3)], [(0, 1), (2, 3)]),  # the space before a word
        ("``a''", [(1, 2), (2, 3), (4, 5)], [(0, 2), (2, 3), (3, 5)]),  # a mark of two characters become one
        ("e\u0301 b", [(0, 1), (3, 4)], [(0, 2), (3, 4)]),  # an accent taken away
        ("be\u0301", [(0, 2)], [(0, 3)]),
        ("a \x00b", [(0, 1), (3, 4)], [(0, 1), (2, 4)]),
        ("a  b", [(0, 1), (2, 2), (3, 4)], [(0, 1), (2, 2), (3, 4)]),  # a space's own sign stands for nothing
    ],
)
def test_characters_a_normaliser_drops_belong_to_a_piece_of_their_word(
    text: str, offsets: list[tuple[int, int]], wanted: list[tuple[int, int]]
) -> None:
    assert cover(text, offsets) == wanted


def test_truncation_and_padding_told_to_the_tokenizer_do_not_act_and_stay_as_they_were() -> None:
    from electra_albert.corpus.tokenizer import train_tokenizer

    told = train_tokenizer(PROSE, 120, do_lower_case=True)
    told.backend_tokenizer.enable_truncation(3)
    told.backend_tokenizer.enable_padding(length=99)
    settings = told.backend_tokenizer.to_str()
    assert [len(ids) > 3 and told.pad_token_id not in ids for ids in TextEncoder(told).encode(PROSE[:2])] == [True] * 2
    assert told.backend_tokenizer.to_str() == settings
    assert not told.backend_tokenizer.encode_special_tokens


@pytest.mark.parametrize("kind", KINDS)
def test_the_text_of_a_special_token_is_read_in_pieces_and_not_as_unknown(kind: str) -> None:
    (pieces,) = encoder(kind).encode_with_offsets(["the <pad> house"])
    assert tokenizer(kind).unk_token_id not in pieces.ids.tolist()
    inside = (pieces.starts >= len("the ")) & (pieces.ends <= len("the <pad>")) & (pieces.starts < pieces.ends)
    assert (pieces.ends - pieces.starts)[inside].max() <= len("pad")
