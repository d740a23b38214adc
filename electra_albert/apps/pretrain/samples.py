"""Sample predictions during pretraining.

The same held-out sentences at each evaluation, with one token masked, and for the discriminator
with that token replaced:
    text         The old [MASK] sat by the fire.
    predictions  man 41.0%, woman 7.5%, …
    replaced     The old woman sat by the fire.   P(replaced) of each token
"""

from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch

from electra_albert.apps.pretrain.job import Job
from electra_albert.contracts import DataError
from electra_albert.corpus.rows import Split
from electra_albert.inference.engine import TokenSequence, printable, shown
from electra_albert.inference.model import InferenceModel, MaskPrediction
from electra_albert.inference.rewrite import format_predictions, format_scored
from electra_albert.keyed_random import Stream, bits
from electra_albert.model.electra import Generator
from electra_albert.tokenization.token_texts import TokenText, token_texts
from electra_albert.tokenization.tokenizer import Tokenizer

SAMPLES = 3
_SHORTEST = 8  # tokens of a sample sentence
_LONGEST = 30
_CANDIDATES = 200  # sentences searched for one of that length
_TOP_K = 5


class Sample(NamedTuple):
    """A held-out sentence with one token masked, and the predictions of both models."""

    text: str
    answer: list[MaskPrediction]  # the most probable tokens
    original: str
    replacement: str  # the most probable other token
    # P(replaced) of each token with the replacement; none without discriminator.
    scores: list[tuple[TokenText, float]]

    def record(self) -> dict[str, Any]:
        """The sample as JSON, for samples.jsonl."""
        record = {
            "text": self.text,
            "original": self.original,
            "predictions": [
                [shown(top["token_str"]), round(top["score"], 4)] for top in self.answer
            ],
        }
        if self.scores:
            record["replacement"] = self.replacement
            probabilities = []
            for token, score in self.scores:
                text = shown(token.text)
                if token.starts_word:
                    text = f" {text}"
                probabilities.append([text, round(score, 4)])
            record["replaced_probabilities"] = probabilities
        return record

    def line(self) -> str:
        """The predictions and the most suspicious tokens on one line."""
        tops = [f"{shown(top['token_str'])} {top['score']:.1%}" for top in self.answer]
        line = f"{printable(self.text)}: {', '.join(tops)}"
        if self.scores:
            ranked = sorted(self.scores, key=lambda scored: -scored[1])
            scores = [f"{shown(token.text)} {score:.0%}" for token, score in ranked[:_TOP_K]]
            line += f"; with {shown(self.replacement)}: P(replaced) {', '.join(scores)}"
        return line

    def report(self, *, colours: bool) -> str:
        """The predictions as a table, and P(replaced) of each token."""
        text = format_predictions(self.text, [self.answer], colours=colours)
        if self.scores:
            text += f"\n    original token: {self.original!r}; scores of the discriminator with "
            text += f"{self.replacement!r} in its position:\n"
            text += format_scored(self.scores, colours=colours)
        return text


def inference_model(job: Job) -> InferenceModel:
    """The inference interface for the models in memory.

    As on load, the encoder's own MLM head has precedence.
    """
    generator = job.objective.generator
    discriminator = job.objective.discriminator
    if discriminator is not None and discriminator.predictions is not None:
        with torch.device("meta"):  # no random numbers are drawn
            generator = Generator(discriminator.config, discriminator.embeddings)
        generator.encoder = discriminator.encoder
        generator.predictions = discriminator.predictions
    encoder: Any = generator or discriminator
    return InferenceModel(
        job.prepared.tokenizer,
        encoder,
        generator,
        discriminator,
        "it is not fine-tuned",
        next(job.objective.parameters()).device,
        4096,
        Path(),
    )


def sample_predictions(job: Job, model: InferenceModel) -> Iterator[Sample]:
    """Samples of sentences from across the held-out text; none without an MLM head.

    Skips a sentence that exceeds the model's length when tokenized again, because the mask split a
    word.
    """
    if model.generator is None:
        return
    split = job.held_out.split
    tokenizer = job.prepared.tokenizer
    longest = min(_LONGEST, job.held_out.max_seq_length - 2)
    total = sum(len(part.sentence_ends) for part in split.parts)
    for key in range(min(SAMPLES, total)):
        ids = _sentence(split, key * total // SAMPLES, longest)
        texts = token_texts(tokenizer, ids)
        positions = _whole_words(texts) or range(len(ids))
        draw = bits(job.config.training.seed, Stream.EXAMPLE, torch.tensor(key), torch.tensor(0))
        position = positions[int(draw) % len(positions)]
        with suppress(DataError):
            yield _sample(model, tokenizer, ids, position)


def _sentence(split: Split, number: int, longest: int) -> list[int]:
    """Token ids of the first sentence from `number` on that is of readable length, if possible.

    Sentences end at 4, 30 and 70, number 1: of (4, 30) and (30, 70), the first has a good length.
    """
    for part in split.parts:
        if number < len(part.sentence_ends):
            break
        number -= len(part.sentence_ends)
    first = max(0, number - 1)
    borders = part.sentence_ends[first : number + _CANDIDATES].tolist()
    if number == 0:
        borders.insert(0, 0)
    for start, end in pairwise(borders):
        if _SHORTEST <= end - start <= longest:
            break
    else:
        start, end = borders[:2]
    cut = min(end, start + longest)
    ids: list[int] = part.tokens[start:cut].tolist()
    return ids


def _sample(model: InferenceModel, tokenizer: Tokenizer, ids: list[int], position: int) -> Sample:
    """The sample of a sentence whose token at `position` is masked."""
    original = ids[position]
    before = tokenizer.decode(ids[:position])
    after = tokenizer.decode(ids[position + 1 :])
    text = f"{before} {tokenizer.mask_token} {after}".strip()
    answer = model.fill_mask(text, _TOP_K)
    if isinstance(answer[0], list):
        answer = answer[0]
    tokens = (top["token"] for top in answer)
    replacement = next((token for token in tokens if token != original), original)
    scores = []
    if model.discriminator is not None:
        sentence = [*ids[:position], replacement, *ids[position + 1 :]]
        replaced = [tokenizer.cls_token_id, *sentence, tokenizer.sep_token_id]
        (logits,) = model.detect([TokenSequence(replaced, [0] * len(replaced))])
        probabilities = logits.sigmoid().tolist()
        scored = zip(token_texts(tokenizer, replaced), probabilities, strict=True)
        for token_id, token_score in zip(replaced, scored, strict=True):
            if token_id not in tokenizer.all_special_ids:
                scores.append(token_score)
    return Sample(
        text, answer, tokenizer.decode([original]), tokenizer.decode([replacement]), scores
    )


def _whole_words(tokens: list[TokenText]) -> list[int]:
    """Positions of tokens that are whole words."""
    positions = []
    padded = [*tokens, TokenText("", True)]
    for position, (token, following) in enumerate(pairwise(padded)):
        is_last = following.starts_word or not following.text[0].isalnum()
        if len(token.text) > 1 and token.starts_word and is_last:
            positions.append(position)
    return positions
