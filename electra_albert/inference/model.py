"""A trained model in a program: fill masks, turn text into vectors, find replaced tokens, score how likely a text is.

A fine-tuned one classifies, tags, answers and chooses.

Dimensions: L length, D hidden.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, overload

import torch
from torch import Tensor

from electra_albert.contracts import DataError, UsageError
from electra_albert.inference.checks import (
    Text,
    as_count,
    as_device,
    as_path,
    as_questions,
    as_targets,
    as_texts,
    name_of,
    with_options,
)
from electra_albert.inference.fill_mask import Proposal, propose, shorten, with_own_mask
from electra_albert.inference.forward import guess, log_likelihoods, replacement_probabilities, vectors
from electra_albert.inference.loading import read_models
from electra_albert.inference.rows import PaddedRows, Row, batches, pad, read_rows, spans_of_row, target_ids
from electra_albert.inference.tasks import (
    CALLS,
    Asked,
    ChoicePrediction,
    ClassPrediction,
    FineTuned,
    SpanPrediction,
    TagPrediction,
    answered,
    chosen_options,
    classified,
    tagged,
)
from electra_albert.model.electra import Discriminator, Generator
from electra_albert.model.encoder import Body

Texts = list[str] | list[tuple[str, str]] | list[Text]
Pooling = Literal["mean", "cls", "pooler"]
Answer = list[Proposal] | list[list[Proposal]]  # for a text with one mask, and for one with several
BATCH_TOKENS = {"cpu": 4096, "cuda": 1 << 16}  # padding included
T = TypeVar("T")


class Features(NamedTuple):
    """A text as vectors, on the CPU."""

    pooled: Tensor  # float32 [D]
    tokens: Tensor  # float32 [L, D], special tokens included
    pieces: list[str]  # the token of each row of `tokens`, as the vocabulary writes it


class TokenVerdict(NamedTuple):
    """One token as the discriminator sees it."""

    piece: str  # as the vocabulary writes it
    start: int  # its first character in the text
    end: int  # one past its last; the same as start where the piece marks a word's beginning and no more
    probability: float  # of having been replaced


class Likelihood(NamedTuple):
    """How likely a text is, in nats."""

    total: float
    tokens: list[tuple[str, float]]  # each piece, and log P(it | all others)


def load_model(
    path: str | Path, device: str | torch.device = "auto", batch_tokens: int | None = None
) -> InferenceModel:
    """The model a user means by `path`: a run folder, an exported, fine-tuned or stock ALBERT, BERT or ELECTRA folder.

    It can do what the folder has the heads for. device is cpu, cuda, cuda:1 or auto, a GPU where there is one.
    batch_tokens bounds how much is computed at once, padding included; what comes out does not depend on it.
    Rows of a token table that belong to no piece of the tokenizer are left out: they are never guessed, and
    probabilities are those among the pieces.
    Raises UsageError for a path or device that is not there, CheckpointError for files that cannot be used.
    """
    place = as_device(device)
    size = BATCH_TOKENS[place.type] if batch_tokens is None else as_count("batch_tokens", batch_tokens)
    return InferenceModel(*read_models(as_path(path), place), place, size, as_path(path))


@dataclass(frozen=True, repr=False)
class InferenceModel:
    """What `load_model` returns. Every call takes one text or a list; a list gives a list, in its order.

    A text longer than the model reads is refused with a DataError, or cut with truncate=True. A token is text unless it
    is [CLS], [SEP], padding or a mask; an unknown one is. Where pairs are taken, a pair is a tuple of two texts, read
    as two segments. Calls may come from many threads.
    """

    tokenizer: Any
    encoder: Body  # of the discriminator, where there is one
    generator: Generator | None
    discriminator: Discriminator | None
    task: FineTuned | str  # or why there is none
    device: torch.device
    batch_tokens: int
    path: Path

    def __repr__(self) -> str:
        config = self.encoder.config
        calls = ["features"]
        calls += ["fill_mask", "pseudo_log_likelihood", "token_log_likelihoods"] * (self.generator is not None)
        calls += ["replaced_probabilities"] * (self.discriminator is not None)
        calls += [] if isinstance(self.task, str) else [CALLS[self.task.model.head.kind]]
        return (
            f"InferenceModel({str(self.path)!r} on {self.device}: {config.num_hidden_layers} layers, hidden size "
            f"{config.hidden_size}, vocabulary {config.vocab_size:,}, at most {config.max_position_embeddings} tokens; "
            f"{', '.join(calls)})"
        )

    def fill_mask(
        self, texts: str | list[str], top_k: int = 5, targets: str | list[str] | None = None, *, truncate: bool = False
    ) -> Any:
        """The `top_k` likeliest tokens at each [MASK], as the fill-mask pipeline gives them.

        For a text with one mask: a list of {"score", "token", "token_str", "sequence"}; with several: such a list for
        each. `targets` are the only tokens to take: pieces of the vocabulary, or words that are one piece.
        Differs from the pipeline: a list of one text gives a list of one answer, where the pipeline drops the list.
        """
        generator, tokenizer = self._masked_token_model("fill_mask"), self.tokenizer
        mask_id, top_k = tokenizer.mask_token_id, as_count("top_k", top_k)
        allowed = None if targets is None else torch.tensor(target_ids(tokenizer, as_targets(targets)))
        own = [with_own_mask(str(text), tokenizer) for text in as_texts(texts, may_be_pairs=False)]
        rows = read_rows(tokenizer, own, generator.config, texts, truncate=truncate)
        counts = [row.ids.count(mask_id) for row in rows]
        if 0 in counts:
            index = counts.index(0)
            read = " among the tokens read" * truncate
            raise DataError(
                f"{name_of(texts, index)}{shorten(own[index])!r} holds no [MASK]{read}; write [MASK] for a word"
            )
        answers: dict[int, Answer] = {}
        for chosen, padded in self._batches(rows):
            guesses = iter(guess(generator, padded, mask_id, top_k, allowed))
            for index in chosen:
                proposals = propose(tokenizer, rows[index].ids, [next(guesses) for _ in range(counts[index])])
                answers[index] = proposals[0] if counts[index] == 1 else proposals
        return _as_given(texts, answers)

    @overload
    def features(self, texts: Text, pooling: Pooling = "mean", *, truncate: bool = False) -> Features: ...
    @overload
    def features(self, texts: Texts, pooling: Pooling = "mean", *, truncate: bool = False) -> list[Features]: ...
    def features(
        self, texts: Text | Texts, pooling: Pooling = "mean", *, truncate: bool = False
    ) -> Features | list[Features]:
        """A vector for each token of a text or a pair, and one for all of it; the discriminator's where there is one.

        pooling: mean over the tokens that are text (over all where none is), cls for the vector at [CLS], or pooler;
        UsageError where the model has no such.
        """
        poolings = ["mean", "cls"] + ["pooler"] * (self.encoder.pooler is not None)
        if pooling not in poolings:
            raise UsageError(f"pooling={pooling!r} is not what this model has; give one of {', '.join(poolings)}")
        rows = self._rows(texts, self.encoder, truncate)
        found: dict[int, Features] = {}
        for chosen, padded in self._batches(rows):
            hidden_states, pooled = vectors(self.encoder, padded, with_pooler=pooling == "pooler")
            for place, index in enumerate(chosen):
                row = rows[index]
                tokens = hidden_states[place, : len(row.ids)].clone()  # [L, D], an ordinary tensor without padding
                if pooled is not None:
                    vector = pooled[place].clone()
                else:
                    vector = tokens[row.text_places or slice(None)].mean(0) if pooling == "mean" else tokens[0].clone()
                found[index] = Features(vector, tokens, self._pieces(row))
        return _as_given(texts, found)

    @overload
    def replaced_probabilities(self, texts: Text, *, truncate: bool = False) -> list[TokenVerdict]: ...
    @overload
    def replaced_probabilities(self, texts: Texts, *, truncate: bool = False) -> list[list[TokenVerdict]]: ...
    def replaced_probabilities(
        self, texts: Text | Texts, *, truncate: bool = False
    ) -> list[TokenVerdict] | list[list[TokenVerdict]]:
        """The probability that each token of a text or a pair was replaced; characters are counted in each text.

        Raises UsageError where the model has no detection head.
        """
        if self.discriminator is None:
            raise UsageError(
                "replaced_probabilities needs a detection head, and this model has none; load a run of objective rtd "
                "or an ELECTRA discriminator"
            )
        rows = self._rows(texts, self.discriminator, truncate)
        found: dict[int, list[TokenVerdict]] = {}
        for chosen, padded in self._batches(rows):
            for index, probabilities in zip(chosen, replacement_probabilities(self.discriminator, padded), strict=True):
                row = rows[index]
                spans, pieces = spans_of_row(self.tokenizer, row), self._pieces(row)
                found[index] = [
                    TokenVerdict(pieces[place], *spans[place], probabilities[place]) for place in row.text_places
                ]
        return _as_given(texts, found)

    @overload
    def pseudo_log_likelihood(self, texts: Text, *, truncate: bool = False) -> float: ...
    @overload
    def pseudo_log_likelihood(self, texts: Texts, *, truncate: bool = False) -> list[float]: ...
    def pseudo_log_likelihood(self, texts: Text | Texts, *, truncate: bool = False) -> float | list[float]:
        """The sum over the tokens of a text or a pair of log P(token | all others), in nats; 0 where there is no token.

        Raises UsageError where the model has no masked-token head. Paper: Salazar et al. 2020, section 2.2.
        """
        found = self.token_log_likelihoods(texts, truncate=truncate)
        return [each.total for each in found] if isinstance(found, list) else found.total

    @overload
    def token_log_likelihoods(self, texts: Text, *, truncate: bool = False) -> Likelihood: ...
    @overload
    def token_log_likelihoods(self, texts: Texts, *, truncate: bool = False) -> list[Likelihood]: ...
    def token_log_likelihoods(self, texts: Text | Texts, *, truncate: bool = False) -> Likelihood | list[Likelihood]:
        """As pseudo_log_likelihood, with the part of each token: each is masked in turn, the others stay."""
        generator = self._masked_token_model("pseudo_log_likelihood")
        rows = self._rows(texts, generator, truncate)
        asked = [(row, place) for row in rows for place in row.text_places]
        nats: dict[int, float] = {}
        for chosen, padded in self._batches([row for row, _ in asked]):
            places = torch.tensor([asked[index][1] for index in chosen])
            found = log_likelihoods(generator, padded, places, self.tokenizer.mask_token_id)
            nats |= zip(chosen, found, strict=True)
        in_order = (nats[index] for index in range(len(asked)))
        told: dict[int, Likelihood] = {}
        for index, row in enumerate(rows):
            pieces = self._pieces(row)
            tokens = [(pieces[place], next(in_order)) for place in row.text_places]
            told[index] = Likelihood(math.fsum(value for _, value in tokens), tokens)
        return _as_given(texts, told)

    @overload
    def classify(self, texts: Text, *, truncate: bool = False) -> ClassPrediction: ...
    @overload
    def classify(self, texts: Texts, *, truncate: bool = False) -> list[ClassPrediction]: ...
    def classify(self, texts: Text | Texts, *, truncate: bool = False) -> ClassPrediction | list[ClassPrediction]:
        """The class of a text or a pair, or its number where the model was fine-tuned on numbers.

        Raises UsageError where the model was not fine-tuned for this, DataError for a text that is too long.
        """
        task = self._fine_tuned("classify")
        found = classified(task, as_texts(texts, may_be_pairs=True), self._asked(texts, truncate))
        return found if isinstance(texts, list) else found[0]

    @overload
    def tag(self, texts: str, *, truncate: bool = False) -> list[TagPrediction]: ...
    @overload
    def tag(self, texts: list[str], *, truncate: bool = False) -> list[list[TagPrediction]]: ...
    def tag(self, texts: str | list[str], *, truncate: bool = False) -> list[TagPrediction] | list[list[TagPrediction]]:
        """The tag of each word of a text; words are between spaces, as in the data of tagging. Raises as classify.

        Texts are read in windows where they are long; only a word longer than a window is too long.
        """
        task = self._fine_tuned("tag")
        found = tagged(task, list(map(str, as_texts(texts, may_be_pairs=False))), self._asked(texts, truncate))
        return found if isinstance(texts, list) else found[0]

    @overload
    def answer(self, questions: str, contexts: str, *, truncate: bool = False) -> SpanPrediction: ...
    @overload
    def answer(self, questions: list[str], contexts: list[str], *, truncate: bool = False) -> list[SpanPrediction]: ...
    def answer(
        self, questions: str | list[str], contexts: str | list[str], *, truncate: bool = False
    ) -> SpanPrediction | list[SpanPrediction]:
        """The stretch of a context that answers a question, or of each context its question. Raises as classify.

        Contexts are read in windows where they are long; only a question may be too long.
        """
        task = self._fine_tuned("answer")
        asked = as_questions(questions, contexts)
        found = answered(task, asked, self._asked(questions, truncate))
        return found if isinstance(questions, list) else found[0]

    @overload
    def choose(
        self, contexts: str, questions: str, options: list[str], *, truncate: bool = False
    ) -> ChoicePrediction: ...
    @overload
    def choose(
        self, contexts: list[str], questions: list[str], options: list[list[str]], *, truncate: bool = False
    ) -> list[ChoicePrediction]: ...
    def choose(
        self,
        contexts: str | list[str],
        questions: str | list[str],
        options: list[str] | list[list[str]],
        *,
        truncate: bool = False,
    ) -> ChoicePrediction | list[ChoicePrediction]:
        """The option that answers a question on a context, or of lists of the three. Raises as classify.

        A question may hold a gap, `_`, which the option fills. All questions of a call have the same number of options.
        """
        task = self._fine_tuned("choose")
        asked = with_options(as_questions(questions, contexts), questions, options)
        found = chosen_options(task, asked, self._asked(questions, truncate))
        return found if isinstance(questions, list) else found[0]

    def _fine_tuned(self, call: str) -> FineTuned:
        if isinstance(self.task, str):
            raise UsageError(f"{call} needs a fine-tuned model: {self.task}")
        able = CALLS[self.task.model.head.kind]
        if able != call:
            raise UsageError(f"{call} needs a model fine-tuned for it; this one can {able}")
        return self.task

    def _asked(self, given: object, truncate: bool) -> Asked:
        return Asked(given, truncate, self.batch_tokens)

    def _rows(self, texts: Text | Texts, model: Body | Generator | Discriminator, truncate: bool) -> list[Row]:
        return read_rows(self.tokenizer, as_texts(texts, may_be_pairs=True), model.config, texts, truncate=truncate)

    def _masked_token_model(self, call: str) -> Generator:
        if self.generator is None:
            raise UsageError(
                f"{call} needs a masked-token head, and this model has none; load a run's folder or its generator"
            )
        return self.generator

    def _pieces(self, row: Row) -> list[str]:
        pieces: list[str] = self.tokenizer.convert_ids_to_tokens(row.ids)
        return pieces

    def _batches(self, rows: list[Row]) -> Iterator[tuple[list[int], PaddedRows]]:
        """Which rows are read together, and these rows side by side."""
        for chosen in batches([len(row.ids) for row in rows], self.batch_tokens):
            yield chosen, pad([rows[index] for index in chosen], self.tokenizer.pad_token_id, self.device)


def _as_given(given: object, found: dict[int, T]) -> T | list[T]:
    """Results by index as a list for a list, and the one for a text."""
    return [found[index] for index in range(len(found))] if isinstance(given, list) else found[0]
