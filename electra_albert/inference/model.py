"""A trained model in a program. Dimensions: B batch, L length, M masked, V vocab, D hidden."""

from __future__ import annotations

import logging
import math
import operator
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from electra_albert.contracts import CheckpointError, DataError, UsageError
from electra_albert.corpus.tokenizer import load_tokenizer, token_texts
from electra_albert.hub import load as hub
from electra_albert.inference import engine, tasks
from electra_albert.inference.engine import Engine, OneOrMore, Text, as_given, as_texts
from electra_albert.inference.rewrite import MASKS_AT_ONCE, Draw, masked_logits, rewrite
from electra_albert.model.electra import Discriminator, Generator
from electra_albert.model.encoder import EncoderModel

LOG = logging.getLogger(__name__)

Texts = Text | list[str] | list[tuple[str, str]] | list[Text]
Proposal = dict[str, Any]  # score, token, token_str, sequence: as the fill-mask pipeline gives them


class Features(NamedTuple):
    """A text as vectors, on the CPU."""

    pooled: Tensor  # float32 [D]
    tokens: Tensor  # float32 [L, D], special tokens included
    subwords: list[str]  # the token of each row of `tokens`, as the vocabulary writes it


class TokenScore(NamedTuple):
    """One token as the discriminator sees it."""

    token: str  # as the vocabulary writes it
    start: int  # its first character in the text; of a pair, in its own text
    end: int  # one past its last; the same as start where the token only marks the beginning of a word
    probability: float  # of having been replaced


class Likelihood(NamedTuple):
    """How likely a text is, in nats."""

    total: float
    tokens: list[tuple[str, float]]  # each token, and log P(it | all others)


def load_model(
    path: str | Path,
    device: str | torch.device = "auto",
    batch_tokens: int | None = None,
    *,
    discriminator: str | Path | None = None,
    config: str | Path | None = None,
    tokenizer: str | Path | None = None,
) -> InferenceModel:
    """The model in `path`: a run folder, an exported, fine-tuned or stock ALBERT, BERT or ELECTRA folder.

    device is cpu, cuda, cuda:1, mps or auto, a CUDA GPU where there is one. batch_tokens, with padding, bounds memory.
    `discriminator` is taken from a folder of its own, `config` and `tokenizer` are those of a bare file of weights.
    Raises UsageError for a path or device that is not there, CheckpointError for files that cannot be used.
    """
    target = _as_device(device)
    size = (1 << 16 if target.type == "cuda" else 4096) if batch_tokens is None else operator.index(batch_tokens)
    if size < 1:
        raise UsageError(f"batch_tokens={size} must be at least 1")
    files, mlm_files = _locate(Path(path), Path(config) if config else None, Path(tokenizer) if tokenizer else None)
    if discriminator is not None:
        files = hub.locate(Path(discriminator), "discriminator")
    stored = hub.read_stored(files)
    mlm = stored if mlm_files == files else hub.read_stored(mlm_files)
    found = load_tokenizer(mlm_files.tokenizer)
    found("")  # drops its settings of truncation and padding, before threads share it
    count, rows = len(found), mlm.config.vocab_size
    is_other = stored.config.vocab_size not in (count, rows)
    # Of a tokenizer from another folder only its size shows whether it is the model's.
    if is_other or rows < count or (rows > count and tokenizer is not None):
        sizes = f"has {count} tokens, the model {stored.config.vocab_size if is_other else rows}"
        way_out = "put the tokenizer it was trained with next to its weights (LM_DEMO.py also takes --tokenizer)"
        raise CheckpointError(f"the tokenizer in {mlm_files.tokenizer} {sizes}; {way_out}")
    if rows > count:
        LOG.info(f"{rows - count} rows of the token table belong to no token of the tokenizer and are never predicted")
    stored, mlm = (_without_spare_rows(one, count) for one in (stored, mlm))
    encoder = hub.build(stored, EncoderModel).to(target)
    detector = hub.build(stored, Discriminator) if "discriminator_predictions" in stored.parts else None
    generator = hub.build(mlm, Generator) if "predictions" in mlm.parts else None
    task = tasks.load_fine_tuned(files, found)
    for part in (detector, generator, None if isinstance(task, str) else task.model):
        if part is not None:
            if part is not generator or mlm_files == files:  # weights that two of them have are kept once
                part.embeddings, part.encoder = encoder.embeddings, encoder.encoder
            part.to(target)
    weights = (files.weights,) if mlm_files.weights == files.weights else (files.weights, mlm_files.weights)
    return InferenceModel(found, encoder, generator, detector, task, target, size, Path(path), weights)


def _locate(path: Path, config: Path | None, tokenizer: Path | None) -> tuple[hub.ModelFiles, hub.ModelFiles]:
    """The files of the encoder, and those of the masked-token model, which may be the same."""
    is_run = os.path.isdir(path / "generator")  # no error for a name that is too long
    if is_run or config is not None or tokenizer is not None:
        generator = hub.locate(path, "generator", config, tokenizer)
        return hub.locate(path) if is_run or generator.part else generator, generator
    encoder = hub.locate(path)
    return encoder, hub.locate(path, "generator") if encoder.part else encoder


def _without_spare_rows(stored: hub.Stored, count: int) -> hub.Stored:
    """The model with the first `count` rows of its token table."""
    tensors = dict(stored.tensors)
    for name in tensors.keys() & hub.VOCABULARY_TENSORS:
        if len(tensors[name]) != stored.config.vocab_size:
            return stored  # refused where it is loaded, with the sizes it has
        tensors[name] = tensors[name][:count]
    return stored._replace(config=replace(stored.config, vocab_size=count), tensors=tensors)


def _as_device(given: str | torch.device) -> torch.device:
    """The device, seen to work; UsageError for any other."""
    name = ("cuda" if torch.cuda.is_available() else "cpu") if str(given) == "auto" else str(given)
    try:
        torch.empty(0, device=name).cpu()
        return torch.device(name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise UsageError(f"device={name!r} cannot be used ({reason}); give cpu, cuda, cuda:1, mps or auto") from None


@dataclass(frozen=True, repr=False)
class InferenceModel(Engine):
    """The model that `load_model` returns: it can do what the folder has the heads for.

    Every call takes one text or a list and gives one result or a list, in its order; threads may share a model. A text
    longer than the model reads is refused with a DataError, or cut with truncate=True. Where pairs are taken, a pair is
    a tuple of two texts. A call that the model has no head for raises UsageError.
    """

    def __repr__(self) -> str:
        config, calls = self.encoder.config, ["features"]
        if self.generator is not None:
            calls += ["fill_mask", "pseudo_log_likelihood", "token_log_likelihoods", "rewrite"]
        calls += ["replaced_probabilities"] * (self.discriminator is not None)
        if not isinstance(self.task, str):
            calls.append(tasks.CALLS[self.task.model.head.kind])
        sizes = f"{config.num_hidden_layers} layers, hidden size {config.hidden_size}, vocabulary {config.vocab_size:,}"
        longest = f"at most {config.max_position_embeddings} tokens"
        return f"InferenceModel({str(self.path)!r} on {self.device}: {sizes}, {longest}; {', '.join(calls)})"

    @torch.no_grad()
    def fill_mask(
        self, texts: OneOrMore, top_k: int = 5, targets: str | Iterable[str] | None = None, *, truncate: bool = False
    ) -> Any:
        """The `top_k` likeliest tokens at each [MASK], as the fill-mask pipeline gives them.

        For a text with one mask: a list of {"score", "token", "token_str", "sequence"}; with several: such a list for
        each. `targets` are the only tokens to take: those of the vocabulary, or words that are one token.
        Differs from the pipeline: a list of one text gives a list of one answer, where the pipeline drops the list.
        """
        generator, tokenizer = self.masked_token_model("fill_mask"), self.tokenizer
        mask_id, top_k = tokenizer.mask_token_id, operator.index(top_k)
        if top_k < 1:
            raise UsageError(f"top_k={top_k} must be at least 1")
        chosen_ids: Any = slice(None) if targets is None else engine.target_ids(tokenizer, targets)
        allowed = torch.arange(generator.config.vocab_size, device=self.device)[chosen_ids]
        sequences = self.encode(texts, generator, truncate, is_filled=True)
        for index, sequence in enumerate(sequences):
            if mask_id not in sequence.ids:
                read = " among the tokens read" * truncate
                raise DataError(f"{engine.quote(texts, index)} holds no [MASK]{read}; write [MASK] for a word")
        found: list[Any] = [None] * len(sequences)
        for padded, chosen in self.batches(sequences):
            masked = generator(*padded)[padded[0] == mask_id]  # [M, D]
            best: list[tuple[list[float], list[int]]] = []  # scores and tokens at each mask
            for logits in masked_logits(generator, masked):
                scores, order = logits.softmax(-1)[:, chosen_ids].topk(min(top_k, len(allowed)))
                best += zip(scores.tolist(), allowed[order].tolist(), strict=True)
            in_order = iter(best)
            for index in chosen:
                proposals = _propose(tokenizer, sequences[index].ids, in_order)
                found[index] = proposals[0] if len(proposals) == 1 else proposals
        return as_given(texts, found)

    @torch.no_grad()
    def features(
        self, texts: Texts, pooling: Literal["mean", "cls", "pooler"] = "mean", *, truncate: bool = False
    ) -> Any:
        """Features: a vector for each token of a text or a pair, and one for all of it.

        They are the discriminator's where there is one. pooling: mean over the tokens that are text (over all where
        none is), cls for the vector at [CLS], or pooler, where the model has one.
        """
        pooler = self.encoder.pooler
        poolings = ["mean", "cls"] + ["pooler"] * (pooler is not None)
        if pooling not in poolings:
            raise UsageError(f"pooling={pooling!r} is not what this model has; give one of {', '.join(poolings)}")
        sequences = self.encode(texts, self.encoder, truncate)
        found: list[Any] = [None] * len(sequences)
        for padded, chosen in self.batches(sequences):
            hidden_states = self.encoder(*padded)  # [B, L, D]
            at_cls = hidden_states[:, 0] if pooler is None or pooling == "cls" else pooler(hidden_states[:, 0]).tanh()
            for vectors, vector, index in zip(hidden_states.cpu(), at_cls.cpu(), chosen, strict=True):
                ids, positions = sequences[index].ids, sequences[index].text_positions
                tokens = vectors[: len(ids)].clone()  # [L, D], without keeping the padding
                pooled = tokens[positions or slice(None)].mean(0) if pooling == "mean" else vector.clone()
                found[index] = Features(pooled, tokens, self.tokenizer.convert_ids_to_tokens(ids))
        return as_given(texts, found)

    def replaced_probabilities(self, texts: Texts, *, truncate: bool = False) -> Any:
        """A list of TokenScore: the probability that each token of a text or a pair was replaced."""
        sequences, found = self.encode(texts, self.encoder, truncate), []
        for sequence, logits in zip(sequences, self.detect(sequences), strict=True):
            tokens = self.tokenizer.convert_ids_to_tokens(sequence.ids)
            described, scores = token_texts(self.tokenizer, sequence.ids), logits.sigmoid().tolist()
            spans = engine.spans_of(sequence.encoding, described, sequence.text)
            found.append([TokenScore(tokens[at], *spans[at], scores[at]) for at in sequence.text_positions])
        return as_given(texts, found)

    def pseudo_log_likelihood(self, texts: Texts, *, truncate: bool = False) -> Any:
        """A float: the sum over a text's tokens of log P(token | all others), in nats (Salazar et al. 2020, 2.2)."""
        found = self.token_log_likelihoods(texts, truncate=truncate)
        return [each.total for each in found] if isinstance(texts, list) else found.total

    @torch.no_grad()
    def token_log_likelihoods(self, texts: Texts, *, truncate: bool = False) -> Any:
        """A Likelihood: pseudo_log_likelihood with the part of each token, which is masked while the others stay."""
        generator, mask_id = self.masked_token_model("pseudo_log_likelihood"), self.tokenizer.mask_token_id
        sequences = self.encode(texts, generator, truncate)
        asked = [(sequence, position) for sequence in sequences for position in sequence.text_positions]
        nats: dict[int, float] = {}
        for (ids, *others), chosen in self.batches([sequence for sequence, _ in asked]):
            row, position = torch.arange(len(chosen)), torch.tensor([asked[index][1] for index in chosen])
            labels = ids[row, position].clone()  # [B]
            ids[row, position] = mask_id
            masked = generator(ids, *others)[row, position]  # [B, D]
            parts = zip(masked_logits(generator, masked), labels.split(MASKS_AT_ONCE), strict=True)
            values = torch.cat([-cross_entropy(*part, reduction="none") for part in parts]).tolist()
            nats |= zip(chosen, values, strict=True)
        found, in_order = [], (nats[index] for index in range(len(asked)))
        for sequence in sequences:
            tokens = self.tokenizer.convert_ids_to_tokens([sequence.ids[at] for at in sequence.text_positions])
            scored = [(token, next(in_order)) for token in tokens]
            found.append(Likelihood(math.fsum(value for _, value in scored), scored))
        return as_given(texts, found)

    def rewrite(self, texts: OneOrMore, mask_rate: float = 0.15, temperature: float = 1.0, seed: int = 42) -> Any:
        """A Rewritten: tokens of a text drawn again from the generator, by seed and number, or its [MASK]s filled."""
        numbered = list(enumerate(as_texts(texts), 1))
        return as_given(texts, rewrite(self, numbered, Draw(mask_rate, temperature, seed)))

    classify, tag, answer, choose = tasks.classify, tasks.tag, tasks.answer, tasks.choose


def _propose(tokenizer: Any, ids: list[int], best: Iterator[tuple[list[float], list[int]]]) -> list[list[Proposal]]:
    """The next of the best scores and tokens at each mask of a sequence, written as the fill-mask pipeline does."""
    mask_id, pad_id = tokenizer.mask_token_id, tokenizer.pad_token_id  # slow to look up
    masks = [position for position, token in enumerate(ids) if token == mask_id]

    def write(position: int, score: float, token: int) -> Proposal:
        filled = [number for number in (*ids[:position], token, *ids[position + 1 :]) if number != pad_id]
        # With further masks in the sentence the special tokens stay, as in the pipeline, or those masks would be lost.
        sequence = tokenizer.decode(filled, skip_special_tokens=len(masks) == 1)
        return {"score": score, "token": token, "token_str": tokenizer.decode([token]), "sequence": sequence}

    return [[write(position, *each) for each in zip(*next(best), strict=True)] for position in masks]
