"""Rewriting text: the choices and draws of pretraining, spliced into the user's own characters."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest
import torch

from electra_albert.apps.fill_mask import fill_masks
from electra_albert.apps.rewrite import BLOCK_LINES, Rewriter, rewrite, rewrite_stream
from electra_albert.apps.splice import Line, Rewritten, compose, spans_of
from electra_albert.config import ModelConfig, RtdConfig
from electra_albert.contracts import IGNORED_LABEL, Batch, DataError
from electra_albert.corpus.tokenizer import describe_pieces, train_tokenizer
from electra_albert.objectives.masking import SpecialIds
from electra_albert.objectives.rtd import ReplacedTokenDetection
from tests.apps.tiny_run import english

SEED, RATE, LONGEST = 7, 0.15, 61
PROBABILITY_TOLERANCE = 1e-5  # float32, batches of another shape
TALE = "The quiet  Owl crossed the river, and Every old cat found a LAMP near the station."
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
    """Untrained models, their scores spread wide enough that a draw is often the right token."""
    model = ModelConfig(
        vocab_size=len(tokenizer),
        embedding_size=11,
        hidden_size=28,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=37,
        max_position_embeddings=LONGEST,
        initialization="normal",
    )
    special = SpecialIds(tokenizer.mask_token_id, tuple(tokenizer.all_special_ids))
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        made = ReplacedTokenDetection(
            model, RtdConfig(mask_rate=RATE, mask_token_share=1.0, generator_size=0.5), special, SEED
        ).eval()
    with torch.no_grad():
        made.electra.generator.predictions.bias[tokenizer.convert_tokens_to_ids(["▁the", "▁owl", "."])] += 5
        made.electra.generator.predictions.bias[list(special.never_masked)] -= 100
        made.electra.discriminator.discriminator_predictions.dense_prediction.weight *= 30
    return made


@pytest.fixture
def rewriter(objective: ReplacedTokenDetection, tokenizer: Any) -> Rewriter:
    electra = objective.electra
    return Rewriter(electra.generator, electra.discriminator, tokenizer, RATE, 1.0, SEED)


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
    return compose(tokenizer, Line(1, text, ids, pieces, spans, False, after, is_chosen, [0.5] * len(ids)))


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


def test_a_line_with_masks_that_is_too_long_is_refused(rewriter: Rewriter) -> None:
    with pytest.raises(DataError, match=f"the model reads {LONGEST}"):
        rewrite(rewriter, [(1, "The [MASK] " + "owl " * 60)])


def test_without_a_discriminator_nothing_is_judged(rewriter: Rewriter) -> None:
    judged = rewrite(rewriter, [(1, TALE)])
    bare = rewrite(rewriter._replace(discriminator=None), [(1, TALE)])
    assert outcome(bare) == outcome(judged)
    assert {replacement.probability for replacement in bare[0].replaced} == {None}


def test_a_stream_gives_a_line_for_a_line_with_its_ending(rewriter: Rewriter) -> None:
    lines = ["\n", "  \r\n", "The owl left.\r\n", "漢 \n", *["Owl.\n"] * BLOCK_LINES, "\n", " The last  lamp"]
    done = list(rewrite_stream(rewriter, lines))
    assert [result is None for _, result in done] == [not line.strip() for line in lines]
    for line, (written, result) in zip(lines, done, strict=True):
        ending = line[len(line.rstrip()) :]
        assert written.endswith(ending)
        assert written == line if result is None else written == result.sequence + line[len(line.rstrip("\r\n")) :]
    numbered = [(number, line.rstrip("\r\n")) for number, line in enumerate(lines, 1) if line.strip()]
    assert outcome([result for _, result in done if result]) == outcome(rewrite(rewriter, numbered))


def test_no_lines_give_none(rewriter: Rewriter) -> None:
    assert list(rewrite_stream(rewriter, [])) == []
    assert rewrite(rewriter, []) == []
