"""Inference with a trained model. Dimensions: B batch, L length, M masked, V vocab, D hidden."""

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

from electra_albert.contracts import LOG, CheckpointError, DataError, UsageError
from electra_albert.corpus.token_texts import token_texts
from electra_albert.corpus.tokenizer import load_tokenizer
from electra_albert.hub import load as hub
from electra_albert.inference import engine, tasks
from electra_albert.inference.engine import Engine, OneOrMore, Text, as_given, as_texts
from electra_albert.inference.rewrite import MASKS_AT_ONCE, Draw, masked_logits, rewrite
from electra_albert.model.electra import Discriminator, Generator
from electra_albert.model.encoder import EncoderModel
from electra_albert.model_config import require

Texts = Text | list[str] | list[tuple[str, str]] | list[Text]
Pooling = Literal["mean", "cls", "pooler"]
MaskPrediction = dict[str, Any]  # score, token, token_str, sequence: as in the fill-mask pipeline


class Features(NamedTuple):
    """Hidden states of one text on the CPU: `pooled`, float32 [D], and `tokens`, float32 [L, D], of L `subwords`."""

    pooled: Tensor
    tokens: Tensor
    subwords: list[str]  # as in the vocabulary, special tokens included


class TokenScore(NamedTuple):
    """A token, text[start:end] (of a pair, in its own text), and the probability from 0 to 1 that it was replaced."""

    token: str  # as in the vocabulary
    start: int
    end: int  # equal to start if the token only marks the start of a word
    probability: float


class Likelihood(NamedTuple):
    """Pseudo-log-likelihood of one text in nats: `total`, and (token, log P(token | all others)) for each token."""

    total: float
    tokens: list[tuple[str, float]]


def load_model(
    path: str | Path,
    device: str | torch.device = "auto",
    batch_tokens: int | None = None,
    *,
    discriminator: str | Path | None = None,
    config: str | Path | None = None,
    tokenizer: str | Path | None = None,
    num_hidden_layers: int | None = None,
) -> "InferenceModel":
    """Load the model in `path`: a run, a checkpoint, an exported, fine-tuned or stock folder, or a weights file.

    Stock folders are those of ALBERT, BERT and ELECTRA. `device` is cpu, cuda, cuda:1, mps or auto: a CUDA GPU if there
    is one. `batch_tokens` limits the tokens per batch, padding included, and so the memory: by default 65,536 on CUDA,
    else 4,096. `discriminator` is the folder of another discriminator; `config` and `tokenizer` are needed if they are
    not next to the weights. `num_hidden_layers` is another depth of the encoder, a multiple of its groups; a separate
    generator keeps its own. Returns an InferenceModel. Raises UsageError for a missing path or device, CheckpointError
    for unsupported or damaged files.
    """
    target = _as_device(device)
    size = (1 << 16 if target.type == "cuda" else 4096) if batch_tokens is None else operator.index(batch_tokens)
    require(size >= 1, f"batch_tokens={size} must be at least 1")
    files, mlm_files = _locate(Path(path), Path(config) if config else None, Path(tokenizer) if tokenizer else None)
    if discriminator is not None:
        files = hub.locate(Path(discriminator), "discriminator")
    stored = hub.read_stored(files, num_hidden_layers)
    if "predictions" in stored.parts and not (discriminator or config or tokenizer):
        mlm_files = files  # of a run: the MLM head of its encoder, not that of the generator
    mlm = stored if mlm_files == files else hub.read_stored(mlm_files)
    found = load_tokenizer(mlm_files.tokenizer)
    found("")  # resets truncation and padding before threads share it
    count, rows = len(found), mlm.config.vocab_size
    is_other = stored.config.vocab_size not in (count, rows)
    # For a tokenizer from another folder, only its size shows whether it belongs to the model.
    if is_other or rows < count or (rows > count and tokenizer is not None):
        sizes = f"has {count} tokens, the model {stored.config.vocab_size if is_other else rows}"
        advice = (
            "put the tokenizer it was trained with next to its weights (electra-albert demo also takes --tokenizer)"
        )
        raise CheckpointError(f"the tokenizer in {mlm_files.tokenizer} {sizes}; {advice}")
    if rows > count:
        LOG.info(f"{rows - count} rows of the word embeddings have no token in the tokenizer and are never predicted")
    stored, mlm = (_without_unused_rows(one, count) for one in (stored, mlm))
    encoder = hub.build(stored, EncoderModel).to(target)
    detector = hub.build(stored, Discriminator) if "discriminator_predictions" in stored.parts else None
    generator = hub.build(mlm, Generator) if "predictions" in mlm.parts else None
    if generator is not None and mlm_files != files and num_hidden_layers is not None:
        LOG.info(f"notice: num_hidden_layers is for the encoder; the generator keeps {mlm.config.num_hidden_layers}")
    task = tasks.load_fine_tuned(files, found)
    for part in (detector, generator, None if isinstance(task, str) else task.model):
        if part is not None:
            if part is not generator or mlm_files == files:  # shared weights are kept once
                part.embeddings, part.encoder = encoder.embeddings, encoder.encoder
            part.to(target)
    weights = (files.weights,) if mlm_files.weights == files.weights else (files.weights, mlm_files.weights)
    return InferenceModel(found, encoder, generator, detector, task, target, size, Path(path), weights)


def _locate(path: Path, config: Path | None, tokenizer: Path | None) -> tuple[hub.ModelFiles, hub.ModelFiles]:
    """Files of the encoder, and of the masked language model, which may be the same."""
    is_run = os.path.isdir(path / "generator")  # no error for a name that is too long
    if is_run or config is not None or tokenizer is not None:
        generator = hub.locate(path, "generator", config, tokenizer)
        return hub.locate(path) if is_run or generator.part else generator, generator
    encoder = hub.locate(path)
    return encoder, hub.locate(path, "any") if encoder.part else encoder  # of a checkpoint, the generator if it has one


def _without_unused_rows(stored: hub.Stored, count: int) -> hub.Stored:
    """The model with the first `count` tokens of its vocabulary."""
    tensors = dict(stored.tensors)
    for name in tensors.keys() & hub.VOCABULARY_TENSORS:
        if len(tensors[name]) != stored.config.vocab_size:
            return stored  # hub.build raises an error with both sizes
        tensors[name] = tensors[name][:count]
    return stored._replace(config=replace(stored.config, vocab_size=count), tensors=tensors)


def _as_device(given: str | torch.device) -> torch.device:
    """Test a device and return it. Raises UsageError if it does not work."""
    name = ("cuda" if torch.cuda.is_available() else "cpu") if str(given) == "auto" else str(given)
    try:
        torch.empty(0, device=name).cpu()
        return torch.device(name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise UsageError(f"device={name!r} cannot be used ({reason}); give cpu, cuda, cuda:1, mps or auto") from None


@dataclass(frozen=True, repr=False)
class InferenceModel(Engine):
    """A model returned by `load_model`; repr() lists the methods that its heads support.

    Each method takes one text or a list of texts and returns one result or a list in the same order; a pair is a tuple
    (str, str). Threads may share a model. Methods raise UsageError if the model lacks the head or does not take such
    texts, and DataError for a text longer than the model's maximum, unless truncate=True.
    """

    def __repr__(self) -> str:
        config, calls = self.encoder.config, ["features"]
        if self.generator is not None:
            calls += ["fill_mask", "pseudo_log_likelihood", "token_log_likelihoods", "rewrite"]
        elif self.energies is not None:
            calls += ["pseudo_log_likelihood", "token_log_likelihoods"]
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
        """Predict the `top_k` most likely tokens for each [MASK], in the format of the fill-mask pipeline.

        Returns a list of {"score", "token", "token_str", "sequence"} for a text with one [MASK], else a list of lists;
        unlike in the pipeline, a list of one text returns a list of one result. `targets` limits predictions to these
        tokens. Raises DataError for a text without [MASK], UsageError for top_k < 1 or a target of several tokens.
        """
        generator, tokenizer = self.masked_token_model("fill_mask"), self.tokenizer
        mask_id, top_k = tokenizer.mask_token_id, operator.index(top_k)
        require(top_k >= 1, f"top_k={top_k} must be at least 1")
        chosen_ids: Any = slice(None) if targets is None else engine.target_ids(tokenizer, targets)
        allowed = torch.arange(generator.config.vocab_size, device=self.device)[chosen_ids]
        sequences = self.encode(texts, generator, truncate, is_filled=True)
        for index, sequence in enumerate(sequences):
            if mask_id not in sequence.ids:
                read = " among the tokens read" * truncate
                raise DataError(f"{engine.quote(texts, index)} has no [MASK]{read}; replace a word by [MASK]")
        found: list[Any] = [None] * len(sequences)
        for padded, chosen in self.batches(sequences):
            masked = generator(*padded)[padded[0] == mask_id]  # [M, D]
            best: list[tuple[list[float], list[int]]] = []  # scores and tokens at each mask
            for logits in masked_logits(generator, masked):
                scores, order = logits.softmax(-1)[:, chosen_ids].topk(min(top_k, len(allowed)))
                best += zip(scores.tolist(), allowed[order].tolist(), strict=True)
            in_order = iter(best)
            for index in chosen:
                predictions = _as_predictions(tokenizer, sequences[index].ids, in_order)
                found[index] = predictions[0] if len(predictions) == 1 else predictions
        return as_given(texts, found)

    @torch.no_grad()
    def features(self, texts: Texts, pooling: Pooling = "mean", *, truncate: bool = False) -> Any:
        """Compute the last hidden states of a text or a pair, of the discriminator if the folder has one.

        Returns Features. `pooling` is mean (over the tokens without special ones, or over all of an empty text), cls
        (the vector of [CLS]) or pooler (the pooler's output). Raises UsageError if the model has no such pooling.
        """
        pooler = self.encoder.pooler
        poolings = ["mean", "cls"] + ["pooler"] * (pooler is not None)
        problem = f"pooling={pooling!r} is not supported by this model; give one of {', '.join(poolings)}"
        require(pooling in poolings, problem)
        sequences = self.encode(texts, self.encoder, truncate)
        found: list[Any] = [None] * len(sequences)
        for padded, chosen in self.batches(sequences):
            hidden_states = self.encoder(*padded)  # [B, L, D]
            at_cls = hidden_states[:, 0]
            if pooler is not None and pooling != "cls":
                at_cls = pooler(at_cls).tanh()
            for vectors, vector, index in zip(hidden_states.cpu(), at_cls.cpu(), chosen, strict=True):
                ids, positions = sequences[index].ids, sequences[index].text_positions
                tokens = vectors[: len(ids)].clone()  # [L, D], a copy that frees the padding
                pooled = tokens[positions or slice(None)].mean(0) if pooling == "mean" else vector.clone()
                found[index] = Features(pooled, tokens, self.tokenizer.convert_ids_to_tokens(ids))
        return as_given(texts, found)

    def replaced_probabilities(self, texts: Texts, *, truncate: bool = False) -> Any:
        """Detect replaced tokens in a text or a pair; returns a list of TokenScore. Paper: ELECTRA section 2."""
        sequences, found = self.encode(texts, self.encoder, truncate), []
        for sequence, logits in zip(sequences, self.detect(sequences), strict=True):
            tokens = self.tokenizer.convert_ids_to_tokens(sequence.ids)
            described, scores = token_texts(self.tokenizer, sequence.ids), logits.sigmoid().tolist()
            spans = engine.spans_of(sequence.encoding, described, sequence.text)
            found.append([TokenScore(tokens[at], *spans[at], scores[at]) for at in sequence.text_positions])
        return as_given(texts, found)

    def pseudo_log_likelihood(self, texts: Texts, *, truncate: bool = False) -> Any:
        """Sum over tokens of log P(token | all others), a float in nats. Paper: Salazar et al. 2020 section 2.2.

        A model trained with `electric` computes all of them in one forward pass. Paper: Clark et al. 2020 (Electric).
        """
        found = self.token_log_likelihoods(texts, truncate=truncate)
        return [each.total for each in found] if isinstance(texts, list) else found.total

    @torch.no_grad()
    def token_log_likelihoods(self, texts: Texts, *, truncate: bool = False) -> Any:
        """Pseudo-log-likelihood of a text or a pair with the term of each token, in nats; returns a Likelihood."""
        if self.energies is not None:
            sequences = self.encode(texts, self.energies, truncate)
            pairs = zip(sequences, self.per_token(self.energies, sequences), strict=True)
            found = [self._likelihood(each, (-energies[each.text_positions]).tolist()) for each, energies in pairs]
            return as_given(texts, found)
        generator, mask_id = self.masked_token_model("pseudo_log_likelihood"), self.tokenizer.mask_token_id
        sequences = self.encode(texts, generator, truncate)
        targets = [(sequence, position) for sequence in sequences for position in sequence.text_positions]
        nats: dict[int, float] = {}
        for (ids, *others), chosen in self.batches([sequence for sequence, _ in targets]):
            example, position = torch.arange(len(chosen)), torch.tensor([targets[index][1] for index in chosen])
            labels = ids[example, position].clone()  # [B]
            ids[example, position] = mask_id
            masked = generator(ids, *others)[example, position]  # [B, D]
            parts = zip(masked_logits(generator, masked), torch.split(labels, MASKS_AT_ONCE), strict=True)
            values = torch.cat([-cross_entropy(*part, reduction="none") for part in parts]).tolist()
            nats |= zip(chosen, values, strict=True)
        in_order = (nats[index] for index in range(len(targets)))
        found = [self._likelihood(each, [next(in_order) for _ in each.text_positions]) for each in sequences]
        return as_given(texts, found)

    def _likelihood(self, sequence: engine.TokenSequence, nats: list[float]) -> Likelihood:
        """The result of token_log_likelihoods for a sequence; nats: one number per text position."""
        tokens = self.tokenizer.convert_ids_to_tokens([sequence.ids[at] for at in sequence.text_positions])
        return Likelihood(math.fsum(nats), list(zip(tokens, nats, strict=True)))

    def rewrite(self, texts: OneOrMore, mask_rate: float = 0.15, temperature: float = 1.0, seed: int = 42) -> Any:
        """Replace a share `mask_rate` of the tokens by samples of the MLM head at `temperature`.

        Returns a Rewritten. Samples depend on `seed` and the index of the text, which may be of any length. In a text
        with [MASK], which must not be too long, each gets the best prediction. Raises UsageError for invalid options.
        """
        numbered = list(enumerate(as_texts(texts), 1))
        return as_given(texts, rewrite(self, numbered, Draw(mask_rate, temperature, seed)))

    classify, tag, answer, choose = tasks.classify, tasks.tag, tasks.answer, tasks.choose


def _as_predictions(
    tokenizer: Any, ids: list[int], best: Iterator[tuple[list[float], list[int]]]
) -> list[list[MaskPrediction]]:
    """Results for each mask of a sequence from the next scores and tokens in `best`, as in the fill-mask pipeline."""
    mask_id, pad_id = tokenizer.mask_token_id, tokenizer.pad_token_id  # slow attributes
    masks = [position for position, token in enumerate(ids) if token == mask_id]

    def write(position: int, score: float, token: int) -> MaskPrediction:
        filled = [number for number in (*ids[:position], token, *ids[position + 1 :]) if number != pad_id]
        # With several masks the special tokens are kept, as in the pipeline, or the other masks would be lost.
        sequence = tokenizer.decode(filled, skip_special_tokens=len(masks) == 1)
        return {"score": score, "token": token, "token_str": tokenizer.decode([token]), "sequence": sequence}

    return [[write(position, *each) for each in zip(*next(best), strict=True)] for position in masks]
