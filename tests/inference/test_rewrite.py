"""Rewriting text: masks and samples as in pretraining, inserted into the original characters."""

import copy
import re
import unicodedata
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from electra_albert.config.model import ModelConfig
from electra_albert.config.objectives import RtdConfig
from electra_albert.contracts import IGNORED_LABEL, Batch
from electra_albert.inference.model import InferenceModel, load_model
from electra_albert.inference.rewrite import REPLACEMENT_CHARACTER, Line, Rewritten, compose, splice
from electra_albert.objectives.rtd import ReplacedTokenDetection
from electra_albert.tokenization.tokenizer import load_tokenizer, special_ids
from tests.apps.tiny_run import SHIPPED, english
from tests.refusals import rows
from tests.tokenization.tokenizer_kinds import KINDS, save_roberta

SEED, RATE, LONGEST = 7, 0.15, 61
TALE = "The quiet  Owl crossed the river, and Every old cat found a LAMP near the station."
PROBABILITY_TOLERANCE = 1e-5  # float32, batches of another shape
TEXTS = [
    TALE,
    "The café\u0301 naïve A\u0302 E\u0301x owl.",
    "The ﬁeld, the oﬃce … ½ ㎏ owl.",
    "[CLS] the owl [SEP] <pad> left <unk>",
]


def make_objective(tokenizer: Any) -> ReplacedTokenDetection:
    """Untrained generator and discriminator for the vocabulary of a tokenizer."""
    config = RtdConfig(mask_rate=RATE, mask_token_share=1.0, generator_size=0.5)
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        shape = ModelConfig(
            vocab_size=len(tokenizer),
            embedding_size=11,
            hidden_size=28,
            intermediate_size=37,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=LONGEST,
            initialization="normal",
        )
        return ReplacedTokenDetection(shape, config, special_ids(tokenizer), SEED).eval()


def inference_of(objective: ReplacedTokenDetection, tokenizer: Any) -> InferenceModel:
    generator, discriminator = objective.electra.generator, objective.electra.discriminator
    cpu = torch.device("cpu")
    return InferenceModel(
        tokenizer, generator, generator, discriminator, "untrained", cpu, 4096, Path()
    )


@pytest.fixture(scope="module")
def objective(tokenizer: Any) -> ReplacedTokenDetection:
    """Biased models whose samples often equal the original token."""
    made = make_objective(tokenizer)
    bias = made.electra.generator.predictions.bias
    with torch.no_grad():
        bias[tokenizer.convert_tokens_to_ids(["▁the", "▁owl", "."])] += 5
        bias[tokenizer.all_special_ids] -= 100
        made.electra.discriminator.discriminator_predictions.dense_prediction.weight *= 30
    return made


@pytest.fixture(scope="module")
def model(objective: ReplacedTokenDetection, tokenizer: Any) -> InferenceModel:
    return inference_of(objective, tokenizer)


def encode(tokenizer: Any, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    return encoded["input_ids"], encoded["offset_mapping"]


def replace_by_hand(tokenizer: Any, text: str, drawn: dict[int, int]) -> Rewritten:
    """Rewrite a text with the given tokens at the given positions."""
    line = Line(tokenizer, text)
    for position, token in drawn.items():
        line.after[position], line.is_chosen[position] = token, True
    line.probabilities = dict.fromkeys(range(len(line.ids)), 0.5)
    return compose(tokenizer, line)


def outcome(results: list[Rewritten]) -> list[object]:
    """Everything that must be bitwise equal: all fields but the probabilities."""
    replaced = [[each._replace(probability=None) for each in text.replaced] for text in results]
    return [*zip((text.sequence for text in results), replaced, strict=True)]


def probabilities(results: list[Rewritten]) -> list[float | None]:
    return [replacement.probability for text in results for replacement in text.replaced]


@pytest.mark.parametrize("number", [1, 3])
def test_rewriting_equals_pretraining(
    model: InferenceModel, objective: ReplacedTokenDetection, number: int
) -> None:
    ids = torch.tensor([model.tokenizer(TALE)["input_ids"]])
    real, types = torch.ones_like(ids, dtype=torch.bool), torch.zeros_like(ids)
    keys = (torch.tensor([IGNORED_LABEL]), torch.tensor([number << 32]))
    with torch.no_grad():
        corruption = objective.corrupt(Batch(ids, real, types, *keys))
        corrupted = corruption.corrupted_ids
        logits = objective.electra.discriminator(corrupted, real, types)[0]
    detected = logits.sigmoid().tolist()
    positions = sorted(corruption.targets.positions[0].tolist())
    ours = model.rewrite([TALE] * number, seed=SEED)[-1]
    assert [r.is_changed for r in ours.replaced] == corruption.is_replaced[0, positions].tolist()
    expected = pytest.approx([detected[at] for at in positions], abs=PROBABILITY_TOLERANCE)
    assert [r.probability for r in ours.replaced] == expected
    drawn = {at - 1: int(corrupted[0, at]) for at in positions}
    assert ours.sequence == replace_by_hand(model.tokenizer, TALE, drawn).sequence
    scores = [probability for _, probability, _ in ours.scores]
    assert scores == pytest.approx(detected[1:-1], abs=PROBABILITY_TOLERANCE)


def test_a_word_mark_after_a_mask_is_scored_only_if_a_word_begins(model: InferenceModel) -> None:
    """Regression: "[MASK]." is tokenized into a mask, an empty token and the full stop, and all
    were scored.
    """
    text = "[MASK][MASK] sees x[MASK]y [MASK]."
    ids, _ = encode(model.tokenizer, text)
    mark, mask = model.tokenizer.convert_tokens_to_ids("▁"), model.tokenizer.mask_token_id
    # The one of " sees" has a space.
    assert sum(pair == (mask, mark) for pair in pairwise(ids)) == 3
    assert len(model.rewrite(text).scores) == len(ids) - 2


@pytest.mark.parametrize("text", TEXTS)
def test_a_replaced_token_changes_only_its_own_characters(tokenizer: Any, text: str) -> None:
    """Characters by the tokenizer's offsets, with following accents; kept tokens change nothing."""
    ids, offsets = encode(tokenizer, text)
    same = replace_by_hand(tokenizer, text, dict(enumerate(ids)))
    assert (same.sequence, any(each.is_changed for each in same.replaced)) == (text, False)
    drum = tokenizer.convert_tokens_to_ids("▁drum")
    for position, (start, end) in enumerate(offsets):
        if ids[position] in tokenizer.all_special_ids:
            continue
        while unicodedata.combining(text[end : end + 1] or " "):
            end += 1
        changed = replace_by_hand(tokenizer, text, {position: drum})
        before, after = text[:start], text[end:]
        assert re.fullmatch(f"{re.escape(before)}.*drum.*{re.escape(after)}", changed.sequence)
        assert [replacement.is_changed for replacement in changed.replaced] == [True]


# A text, the position of a token, the tokens that replace it and the next, and the new text.
NEW_TOKENS = """
The  Owl left        | 1 | ▁lamp      | The  lamp left
the owl, left        | 2 | .          | the owl. left
the (owl) left       | 1 | ▁lamp      | the lamp(owl) left
the e\u0301 left     | 2 | ▁lamp      | the lamp left
The owl left         | 1 | ▁          | The  left
the owl, left        | 1 | ▁lamp ▁key | the lamp key left
"""


@pytest.mark.parametrize(("text", "position", "tokens", "expected"), rows(NEW_TOKENS))
def test_text_of_a_new_token(
    tokenizer: Any, text: str, position: str, tokens: str, expected: str
) -> None:
    ids = tokenizer.convert_tokens_to_ids(tokens.split(" "))
    drawn = dict(enumerate(ids, int(position)))
    assert replace_by_hand(tokenizer, text, drawn).sequence == expected


def test_unknown_and_special_tokens_are_neither_masked_nor_sampled(model: InferenceModel) -> None:
    """Special tokens are not sampled even if they have the highest logits."""
    result = model.rewrite("漢字 the [SEP] owl", mask_rate=1.0)
    assert {replacement.before for replacement in result.replaced} == {"", "the", "owl"}
    result = model.rewrite("[CLS] <unk>", mask_rate=1.0)
    assert [result.replaced, result.sequence] == [[], "[CLS] <unk>"]
    generator = copy.deepcopy(model.generator)
    generator.requires_grad_(False).predictions.bias[model.tokenizer.all_special_ids] += 200
    texts = [TALE, "The [MASK] left."]
    for result in replace(model, generator=generator).rewrite(texts, mask_rate=1.0):
        assert not any(token in result.sequence for token in model.tokenizer.all_special_tokens)


def test_the_same_seed_repeats_the_text_and_another_changes_it(model: InferenceModel) -> None:
    texts = [TALE] * 3
    first = model.rewrite(texts, seed=SEED)
    assert model.rewrite(texts, seed=SEED) == first
    assert outcome(model.rewrite(texts, seed=SEED + 1)) != outcome(first)
    assert len({result.sequence for result in first}) > 1
    assert len(model.rewrite("owl").replaced) == 1
    heat = ((1e-6, 1), (1e-6, 2), (1.0, 1))  # temperatures and seeds
    cold, other, hot = (outcome(model.rewrite(texts, 1.0, *pair)) for pair in heat)
    assert cold == other != hot


def test_other_lines_and_batches_do_not_change_a_line(model: InferenceModel) -> None:
    texts = [*english(6).split("\n"), TALE * 3, "The [MASK] left."]
    together = model.rewrite(texts)
    others = [model.rewrite([*["Owl."] * number, text])[-1] for number, text in enumerate(texts)]
    small = replace(model, batch_tokens=1).rewrite(texts)
    bare = replace(model, detector=None).rewrite(texts)
    assert outcome(together) == outcome(others) == outcome(small) == outcome(bare)
    assert probabilities(together) == pytest.approx(probabilities(small), abs=PROBABILITY_TOLERANCE)
    assert {*probabilities(bare)} == {None}


def test_a_line_longer_than_the_maximum_is_rewritten_completely(model: InferenceModel) -> None:
    """The line is split before words, each sequence has its share of masks, and no text is lost."""
    words = 20 * (LONGEST - 2)
    text = " ".join(["owl"] * words)
    result = model.rewrite(text)
    assert len(result.replaced) == 20 * round(RATE * (LONGEST - 2))
    assert len(result.scores) == words
    assert splice(text, result.replaced, lambda one: one.before) == text
    # Five tokens per word, so that 55 of 59 fit.
    assert len(model.rewrite(" ".join(["xxxx"] * 22)).replaced) == 2 * round(RATE * 55)


@pytest.mark.parametrize("kind", ["albert uncased", "bert uncased", "roberta", "fast unigram"])
def test_every_tokenizer_fills_masks_and_writes_no_word_marks_or_unknown_tokens(
    tmp_path: Path, kind: str
) -> None:
    """Regressions: [MASK] was treated as text for a tokenizer whose mask is <mask>; a blank line
    had tokens.
    """
    KINDS[kind](tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    model = inference_of(make_objective(tokenizer), tokenizer)
    typed = "The house [MASK] old, and a [MASK] was not; [PAD] <pad> stays."
    ours, same = model.rewrite([typed, typed.replace("[MASK]", tokenizer.mask_token)])
    assert (ours.sequence, ours.is_filled, len(ours.replaced)) == (same.sequence, True, 2)
    assert re.fullmatch(r"The house .* was not; \[PAD] <pad> stays\.", ours.sequence)
    assert model.rewrite("  \t").replaced == []
    text = "the house on the hill was old"
    last = len(encode(tokenizer, text)[0]) - 1
    for token in {*range(len(tokenizer))}.difference(tokenizer.all_special_ids):
        written = replace_by_hand(tokenizer, text, {last: token}).sequence
        assert not re.search("▁|Ġ|##|<0x", written)


def test_bytes_of_a_character_are_decoded_together(tmp_path: Path) -> None:
    """Regression: if some bytes of a character were sampled, each was decoded to a replacement
    character.
    """
    save_roberta(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    for before, after in (("große Hütte", "gro¿e Hötte"), ("中 and 🦉", "丮 and 🦊")):
        old, new = (encode(tokenizer, text)[0] for text in (before, after))
        drawn = dict(set(enumerate(new)) - set(enumerate(old)))
        assert replace_by_hand(tokenizer, before, drawn).sequence == after
    # An accent that has its own tokens.
    assert Line(tokenizer, "e\u0301").spans == [(0, 1), (1, 2), (1, 2)]
    half, text = encode(tokenizer, "é")[0][0], "The house was old."
    last = len(encode(tokenizer, text)[0]) - 1
    written = replace_by_hand(tokenizer, text, {last: half}).sequence
    assert written == f"The house was old{REPLACEMENT_CHARACTER}"


def test_a_letter_of_several_unknown_tokens_is_kept_once() -> None:
    # Regression: each of its unknown tokens was written as the letter, and a letter was put in
    # front of it.
    model = load_model(SHIPPED, device="cpu")
    for seed in range(50, 60):
        rewritten = model.rewrite("peace be upon him ﷺ said the man", mask_rate=0.6, seed=seed)
        assert re.findall(r"\w*ﷺ\w*", rewritten.sequence) == ["ﷺ"]
        assert any(replacement.is_changed for replacement in rewritten.replaced)
