"""Rewriting text: the choices and draws of pretraining, spliced into the user's own characters."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Any

import pytest
import torch

from electra_albert.contracts import IGNORED_LABEL, Batch
from electra_albert.corpus.tokenizer import describe_pieces, load_tokenizer, train_tokenizer
from electra_albert.inference.fill_mask import encode as encode_masked
from electra_albert.inference.fill_mask import fill, fill_masks
from electra_albert.inference.rewrite import Rewriter, rewrite
from electra_albert.inference.splice import Line, Rewritten, compose, spans_of
from electra_albert.objectives.rtd import ReplacedTokenDetection
from tests.apps.tiny_rewriter import LONGEST, RATE, SEED, TALE, make_objective, make_rewriter
from tests.apps.tiny_run import english
from tests.corpus.tokenizer_kinds import KINDS

PROBABILITY_TOLERANCE = 1e-5  # float32, batches of another shape
TEXTS = {
    "plain": TALE,
    "spaces": "  The quiet\t owl  left .  ",
    "accents": "The café\u0301 naïve A\u0302 E\u0301x owl.",
    "ligatures": "The ﬁeld, the oﬃce … ½ ㎏ owl.",
    "right to left": "שלום owl עולם the قلم",
    "emoji": "The 😀👍🏽 owl🦉 left 👩‍👩‍👧.",
    "control": "The \x00\x1b[31m owl\x07 a\u200bb\u00adc.",
    "quotes": "``The owl'' left [mask] [x].",
    "separators": "\u2028The owl\u2028left\u0085a",
    "special": "[CLS] the owl [SEP] <pad> left <unk>",
}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer(english(60).split("\n"), 300, do_lower_case=True)


@pytest.fixture(scope="module")
def objective(tokenizer: Any) -> ReplacedTokenDetection:
    """Scores spread wide enough that a draw is often the right token."""
    made = make_objective(tokenizer)
    with torch.no_grad():
        made.electra.generator.predictions.bias[tokenizer.convert_tokens_to_ids(["▁the", "▁owl", "."])] += 5
        made.electra.generator.predictions.bias[tokenizer.all_special_ids] -= 100
        made.electra.discriminator.discriminator_predictions.dense_prediction.weight *= 30
    return made


@pytest.fixture
def rewriter(objective: ReplacedTokenDetection, tokenizer: Any) -> Rewriter:
    return make_rewriter(objective, tokenizer)


def encode(tokenizer: Any, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    return encoded["input_ids"], encoded["offset_mapping"]


def replace_by_hand(tokenizer: Any, text: str, drawn: dict[int, int]) -> Rewritten:
    """The text with the tokens at some places replaced by those given."""
    ids, offsets = encode(tokenizer, text)
    pieces = describe_pieces(tokenizer, ids)
    after = [drawn.get(place, token) for place, token in enumerate(ids)]
    is_chosen = [place in drawn for place in range(len(ids))]
    spans = spans_of(text, pieces, offsets)
    return compose(tokenizer, Line(text, ids, pieces, spans, False, after, is_chosen, [0.5] * len(ids)))


def maskable_places(tokenizer: Any, ids: list[int]) -> list[int]:
    return [place for place, token in enumerate(ids) if token not in tokenizer.all_special_ids]


def outcome(results: list[Rewritten]) -> list[object]:
    """What must be equal bit for bit: everything but the probabilities."""
    return [
        [text.sequence, [replacement._replace(probability=None) for replacement in text.replaced]] for text in results
    ]


def probabilities(results: list[Rewritten]) -> list[float]:
    return [replacement.probability or 0.0 for text in results for replacement in text.replaced]


@pytest.mark.parametrize("number", range(1, 9))
def test_choices_draws_and_verdicts_are_those_of_pretraining(
    rewriter: Rewriter, objective: ReplacedTokenDetection, number: int
) -> None:
    tokenizer = rewriter.tokenizer
    ids = torch.tensor([tokenizer(TALE)["input_ids"]])
    batch = Batch(
        ids,
        torch.ones_like(ids, dtype=torch.bool),
        torch.zeros_like(ids),
        torch.tensor([IGNORED_LABEL]),
        torch.tensor([number << 32]),
    )
    with torch.no_grad():
        corruption = objective.corrupt(batch)
        judge = objective.electra.discriminator
        detected = judge(corruption.corrupted_ids, batch.attention_mask, batch.token_type_ids).sigmoid()[0]
    places = corruption.targets.positions[0].sort().values
    (ours,) = rewrite(rewriter, [(number, TALE)])
    assert [r.is_changed for r in ours.replaced] == corruption.is_replaced[0, places].tolist()
    assert [r.probability for r in ours.replaced] == pytest.approx(detected[places].tolist(), abs=PROBABILITY_TOLERANCE)
    drawn = {int(place) - 1: int(corruption.corrupted_ids[0, place]) for place in places}
    assert ours.sequence == replace_by_hand(tokenizer, TALE, drawn).sequence


def test_masks_are_filled_as_fill_mask_would(rewriter: Rewriter) -> None:
    text = "Every [MASK]  owl found a [MASK]."
    first, second = (guesses[0]["token_str"] for guesses in fill_masks(rewriter.generator, rewriter.tokenizer, text, 1))
    (ours,) = rewrite(rewriter, [(1, text)])
    assert [ours.sequence, ours.is_filled] == [f"Every {first}  owl found a {second}.", True]


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_whose_tokens_are_all_kept_is_the_same_byte_for_byte(tokenizer: Any, name: str) -> None:
    ids, _ = encode(tokenizer, TEXTS[name])
    kept = replace_by_hand(tokenizer, TEXTS[name], dict(enumerate(ids)))
    assert kept.sequence == TEXTS[name]
    assert not any(replacement.is_changed for replacement in kept.replaced)


@pytest.mark.parametrize("name", TEXTS)
def test_a_replaced_token_changes_its_own_characters_alone(tokenizer: Any, name: str) -> None:
    """Its characters by the tokenizer's own offsets, and the accents that follow them."""
    text = TEXTS[name]
    ids, offsets = encode(tokenizer, text)
    drum = tokenizer.convert_tokens_to_ids("▁drum")
    for place in maskable_places(tokenizer, ids):
        start, end = offsets[place]
        while unicodedata.combining(text[end : end + 1] or " "):
            end += 1
        changed = replace_by_hand(tokenizer, text, {place: drum})
        assert changed.sequence.startswith(text[:start])
        assert changed.sequence.endswith(text[end:])
        assert "drum" in changed.sequence[start : len(changed.sequence) - len(text[end:])]
        assert [replacement.is_changed for replacement in changed.replaced] == [True]


@pytest.mark.parametrize(
    ("text", "place", "piece", "expected"),
    [
        ("The  Owl left", 1, "▁lamp", "The  lamp left"),
        ("the owl, left", 2, "▁lamp", "the owl lamp left"),
        ("the owl, left", 2, ".", "the owl. left"),
        ("the (owl) left", 1, "▁lamp", "the lamp(owl) left"),
        ("the Zoo left", 1, "▁lamp", "the lampZoo left"),
        ("the e\u0301 left", 2, "▁lamp", "the lamp left"),
        ("The owl left", 1, "▁", "The  left"),
    ],
    ids=["its space stays", "a word in a word", "glued", "a mark has no text", "case", "accent", "nothing drawn"],
)
def test_how_a_piece_is_written(tokenizer: Any, text: str, place: int, piece: str, expected: str) -> None:
    changed = replace_by_hand(tokenizer, text, {place: tokenizer.convert_tokens_to_ids(piece)})
    assert changed.sequence == expected


def test_neighbours_that_are_both_replaced_do_not_run_together(tokenizer: Any) -> None:
    lamp, key = tokenizer.convert_tokens_to_ids(["▁lamp", "▁key"])
    assert replace_by_hand(tokenizer, "the owl, left", {1: lamp, 2: key}).sequence == "the lamp key left"


@pytest.mark.parametrize("words", [1, 2, 10, 40])
@pytest.mark.parametrize("rate", [0.15, 0.5, 1.0])
def test_the_share_of_tokens_asked_for_is_masked_and_one_at_least(rewriter: Rewriter, words: int, rate: float) -> None:
    text = " ".join(["owl"] * words)
    (result,) = rewrite(rewriter._replace(mask_rate=rate), [(3, text)])
    assert len(result.replaced) == max(1, round(rate * words))


def test_unknown_and_special_tokens_are_never_masked(rewriter: Rewriter) -> None:
    every = rewriter._replace(mask_rate=1.0)
    (result,) = rewrite(every, [(1, "漢字 the [SEP] owl")])
    assert {replacement.before for replacement in result.replaced} == {"", "the", "owl"}
    (result,) = rewrite(every, [(1, "[CLS] <unk>")])
    assert [result.replaced, result.sequence] == [[], "[CLS] <unk>"]


def test_a_special_token_is_never_drawn(rewriter: Rewriter) -> None:
    """However much the generator would like to."""
    bias = rewriter.generator.predictions.bias
    special = torch.zeros_like(bias)
    special[rewriter.tokenizer.all_special_ids] = 200
    with torch.no_grad():
        bias.add_(special)
        results = rewrite(rewriter._replace(mask_rate=1.0), [(1, TALE), (2, "The [MASK] left.")])
        bias.sub_(special)
    for result in results:
        assert not any(token in result.sequence for token in rewriter.tokenizer.all_special_tokens)


def test_a_seed_repeats_and_another_gives_another_text(rewriter: Rewriter) -> None:
    lines = [(number, TALE) for number in (1, 2, 3)]
    first = rewrite(rewriter, lines)
    assert rewrite(rewriter, lines) == first
    assert outcome(rewrite(rewriter._replace(seed=SEED + 1), lines)) != outcome(first)
    assert len({result.sequence for result in first}) > 1


def test_lines_and_batches_around_a_line_do_not_change_it(rewriter: Rewriter) -> None:
    texts = [*english(6).split("\n"), TALE * 3, "The [MASK] left."]
    lines = [(number, text) for number, text in enumerate(texts, 1) if text]
    together = rewrite(rewriter, lines)
    alone = [rewrite(rewriter, [line])[0] for line in lines]
    small = rewrite(rewriter, lines, batch_tokens=1)
    assert outcome(together) == outcome(alone) == outcome(small)
    assert probabilities(together) == pytest.approx(probabilities(alone), abs=PROBABILITY_TOLERANCE)


def test_a_line_longer_than_the_model_reads_is_rewritten_whole(rewriter: Rewriter) -> None:
    """Every part of it has its share of masks, and nothing is lost."""
    words = 20 * (LONGEST - 2)
    text = " ".join(["owl"] * words)
    (result,) = rewrite(rewriter, [(1, text)])
    assert len(result.replaced) == 20 * round(RATE * (LONGEST - 2))
    assert result.unchanged_count == words - sum(replacement.is_changed for replacement in result.replaced)
    kept = replace_by_hand(rewriter.tokenizer, text, {})
    assert kept.sequence == text
    outside, reached = [], 0
    for replacement in result.replaced:
        assert reached <= replacement.start
        outside.append(text[reached : replacement.start])
        reached = replacement.end
    assert (
        result.sequence
        == "".join(part for pair in zip(outside, [r.after for r in result.replaced], strict=True) for part in pair)
        + text[reached:]
    )


def test_a_long_line_is_cut_where_a_word_begins(rewriter: Rewriter) -> None:
    """Seen in the quota of the parts: words of five tokens fill no row evenly."""
    text = " ".join(["xxxx"] * 22)
    ids, _ = encode(rewriter.tokenizer, text)
    by_words = (LONGEST - 2) // 5 * 5
    assert [len(ids), by_words * 2] == [110, 110]
    (result,) = rewrite(rewriter, [(1, text)])
    assert len(result.replaced) == 2 * round(RATE * by_words)
    assert len(result.replaced) != round(RATE * (LONGEST - 2)) + round(RATE * (len(ids) - LONGEST + 2))


@pytest.mark.parametrize("kind", KINDS)
def test_a_mask_is_written_alike_whatever_the_tokenizer_calls_its_own(tmp_path: Path, kind: str) -> None:
    """A regression: [MASK] was rewritten as text where the tokenizer's own mask is <mask>."""
    KINDS[kind](tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    rewriter = make_rewriter(make_objective(tokenizer), tokenizer)
    typed = "The house [MASK] old, and a [MASK] was not; [PAD] <pad> stays."
    (ours,) = rewrite(rewriter, [(1, typed)])
    (own,) = rewrite(rewriter, [(1, typed.replace("[MASK]", tokenizer.mask_token))])
    assert (ours.sequence, ours.is_filled, len(ours.replaced)) == (own.sequence, True, 2)
    assert ours.sequence.startswith("The house ")
    assert ours.sequence.endswith(" was not; [PAD] <pad> stays.")
    guesses = fill_masks(rewriter.generator, tokenizer, typed, 2)
    assert guesses == fill_masks(rewriter.generator, tokenizer, typed.replace("[MASK]", tokenizer.mask_token), 2)
    assert len(guesses) == 2


def test_what_is_filled_for_the_judge_is_what_is_written(rewriter: Rewriter) -> None:
    """The tokens themselves, also where their text would be cut into others, but for marks without text behind a mask.

    A special token is never filled in.
    """
    text = "[MASK][MASK] sees x[MASK]y [MASK]."
    ids = encode_masked(text, rewriter.tokenizer, LONGEST)
    bias = rewriter.generator.predictions.bias
    with torch.no_grad():
        before = bias.clone()
        bias[rewriter.tokenizer.all_special_ids] += 300
        filled = fill(rewriter.generator, rewriter.tokenizer, text, ids, 1)
        (written,) = rewrite(rewriter, [(1, text)])
        bias.copy_(before)
    is_mask = ids == rewriter.tokenizer.mask_token_id
    is_mark = (ids == rewriter.tokenizer.convert_tokens_to_ids("▁")) & is_mask.roll(1)
    assert is_mark.sum() == 3
    is_mark[0, is_mark[0].nonzero()[0]] = False  # " sees" has a space of its own
    whole = ids.masked_scatter(~is_mark, filled.ids)
    assert torch.equal(whole[~is_mask], ids[~is_mask])
    drawn = dict(enumerate(whole[0, 1:-1].tolist()))
    assert written.sequence == replace_by_hand(rewriter.tokenizer, text, drawn).sequence
    assert not set(whole[is_mask].tolist()) & set(rewriter.tokenizer.all_special_ids)
    assert {guesses[0]["token"] for guesses in filled.proposals} <= set(rewriter.tokenizer.all_special_ids)


def test_without_a_discriminator_nothing_is_judged(rewriter: Rewriter) -> None:
    judged = rewrite(rewriter, [(1, TALE)])
    bare = rewrite(rewriter._replace(discriminator=None), [(1, TALE)])
    assert outcome(bare) == outcome(judged)
    assert {replacement.probability for replacement in bare[0].replaced} == {None}


@pytest.mark.parametrize("text", ["\u200b", "\x00", "\u200b\x07"])
def test_a_line_without_any_token_is_left_as_it_is(tmp_path: Path, text: str) -> None:
    """A regression: it is not blank, and was a traceback."""
    KINDS["bert cased"](tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    assert encode(tokenizer, text)[0] == []
    (result,) = rewrite(make_rewriter(make_objective(tokenizer), tokenizer), [(1, text)])
    assert [result.sequence, result.replaced] == [text, []]
