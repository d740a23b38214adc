"""Sample predictions during pretraining: the same held-out sentences at each evaluation, with one token masked."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch

from electra_albert.apps.pretrain.job import Job
from electra_albert.contracts import DataError
from electra_albert.inference.engine import TokenSequence, printable, shown
from electra_albert.inference.model import InferenceModel, MaskPrediction
from electra_albert.inference.rewrite import format_predictions, format_scored
from electra_albert.keyed_random import Stream, bits
from electra_albert.model.electra import Generator
from electra_albert.tokenization.token_texts import TokenText, token_texts
from electra_albert.tokenization.tokenizer import Tokenizer

SAMPLES = 3
_SHORTEST, _LONGEST = 8, 30  # tokens of a sample sentence
_CANDIDATES = 200  # sentences searched for one of that length
_TOP_K = 5


class Sample(NamedTuple):
    """A held-out sentence with one token masked, and the predictions of both models."""

    text: str
    answer: list[MaskPrediction]  # the most probable tokens
    original: str
    replacement: str  # the most probable other token
    scores: list[tuple[TokenText, float]]  # P(replaced) of each token with the replacement; none without discriminator

    def record(self) -> dict[str, Any]:
        """The sample as JSON, for samples.jsonl."""
        scores = [[" " * token.starts_word + shown(token.text), round(score, 4)] for token, score in self.scores]
        predictions = [[shown(found["token_str"]), round(found["score"], 4)] for found in self.answer]
        named = {"text": self.text, "original": self.original, "predictions": predictions}
        return named | ({"replacement": self.replacement, "replaced_probabilities": scores} if scores else {})

    def line(self) -> str:
        """The predictions and the most suspicious tokens on one line."""
        found = ", ".join(f"{shown(found['token_str'])} {found['score']:.1%}" for found in self.answer)
        ranked = sorted(self.scores, key=lambda each: -each[1])[:_TOP_K]
        scored = ", ".join(f"{shown(token.text)} {score:.0%}" for token, score in ranked)
        replaced = f"; with {shown(self.replacement)}: P(replaced) {scored}" if ranked else ""
        return f"{printable(self.text)}: {found}{replaced}"

    def report(self, *, colours: bool) -> str:
        """The predictions as a table, and P(replaced) of each token."""
        lines = [format_predictions(self.text, [self.answer], colours=colours)]
        if self.scores:
            names = f"original token: {self.original!r}; scores of the discriminator with {self.replacement!r}"
            lines += [f"    {names} in its position:", format_scored(self.scores, colours=colours)]
        return "\n".join(lines)


def inference_model(job: Job) -> InferenceModel:
    """The inference interface for the models in memory; as on load, the encoder's own MLM head has precedence."""
    generator, discriminator = job.objective.generator, job.objective.discriminator
    if discriminator is not None and discriminator.predictions is not None:
        with torch.device("meta"):  # no random numbers are drawn
            generator = Generator(discriminator.config, discriminator.embeddings)
        generator.encoder, generator.predictions = discriminator.encoder, discriminator.predictions
    device, reason = next(job.objective.parameters()).device, "it is not fine-tuned"
    encoder: Any = generator or discriminator
    return InferenceModel(job.prepared.tokenizer, encoder, generator, discriminator, reason, device, 4096, Path())


def sample_predictions(job: Job, model: InferenceModel) -> Iterator[Sample]:
    """Samples of sentences from across the held-out text, of readable length if possible; none without an MLM head.

    Skips a sentence that exceeds the model's length when tokenized again, because the mask split a word.
    """
    split, tokenizer = job.held_out.split, job.prepared.tokenizer
    longest = min(_LONGEST, job.held_out.max_seq_length - 2)
    counts = [len(part.sentence_ends) for part in split.parts]
    for key in range(min(SAMPLES, sum(counts)) if model.generator is not None else 0):
        first, part = key * sum(counts) // SAMPLES, 0
        while first >= counts[part]:
            first, part = first - counts[part], part + 1
        stream, ends = split.parts[part], split.parts[part].sentence_ends
        borders = [int(ends[first - 1]) if first else 0, *ends[first : first + _CANDIDATES].tolist()]
        spans = list(pairwise(borders))
        start, end = next((span for span in spans if _SHORTEST <= span[1] - span[0] <= longest), spans[0])
        ids = stream.tokens[start : min(end, start + longest)].tolist()
        words = _whole_words(token_texts(tokenizer, ids)) or range(len(ids))
        draw = bits(job.config.training.seed, Stream.EXAMPLE, torch.tensor(key), torch.tensor(0))
        with suppress(DataError):
            yield _sample(model, tokenizer, ids, words[int(draw) % len(words)])


def _sample(model: InferenceModel, tokenizer: Tokenizer, ids: list[int], position: int) -> Sample:
    """The sample of a sentence whose token at `position` is masked."""
    before, after, original = tokenizer.decode(ids[:position]), tokenizer.decode(ids[position + 1 :]), ids[position]
    text = f"{before} {tokenizer.mask_token} {after}".strip()
    (answer,) = model.fill_mask([text], _TOP_K)
    answer = answer[0] if isinstance(answer[0], list) else answer
    replacement = next((found["token"] for found in answer if found["token"] != original), original)
    scores = []
    if model.discriminator is not None:
        replaced = [tokenizer.cls_token_id, *ids[:position], replacement, *ids[position + 1 :], tokenizer.sep_token_id]
        (logits,) = model.detect([TokenSequence(replaced, [0] * len(replaced))])
        described = zip(replaced, token_texts(tokenizer, replaced), logits.sigmoid().tolist(), strict=True)
        scores = [(token, score) for number, token, score in described if number not in tokenizer.all_special_ids]
    return Sample(text, answer, tokenizer.decode([original]), tokenizer.decode([replacement]), scores)


def _whole_words(tokens: Sequence[TokenText]) -> list[int]:
    """Positions of tokens that are whole words."""
    return [
        position
        for position, (token, following) in enumerate(pairwise([*tokens, TokenText("", starts_word=True)]))
        if len(token.text) > 1 and token.starts_word and (following.starts_word or not following.text[0].isalnum())
    ]
