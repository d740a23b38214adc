"""Inference with a trained model. Dimensions: B batch, L length, M masked, V vocab, D hidden."""

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from electra_albert.config.checks import require
from electra_albert.contracts import LOG, CheckpointError, DataError, UsageError
from electra_albert.hub import load as hub
from electra_albert.inference import engine, finetuned
from electra_albert.inference.engine import Engine, OneOrMore, Text, as_given, as_texts
from electra_albert.inference.rewrite import Draw, masked_logits, rewrite
from electra_albert.model.electra import Discriminator, Generator
from electra_albert.model.encoder import EncoderModel
from electra_albert.tokenization.token_texts import token_texts
from electra_albert.tokenization.tokenizer import load_tokenizer

Texts = Text | list[str] | list[tuple[str, str]] | list[Text]
Pooling = Literal["mean", "cls", "pooler"]
# With score, token, token_str and sequence, as in the fill-mask pipeline.
MaskPrediction = dict[str, Any]


class Features(NamedTuple):
    """Hidden states of one text on the CPU, of L `subwords`.

    `pooled` is float32 [D], `tokens` float32 [L, D].
    """

    pooled: Tensor
    tokens: Tensor
    subwords: list[str]  # as in the vocabulary, special tokens included


class TokenScore(NamedTuple):
    """A token, text[start:end] (of a pair, in its own text), and P(it was replaced)."""

    token: str  # as in the vocabulary
    start: int
    end: int  # equal to start if the token only marks the start of a word
    probability: float


class Likelihood(NamedTuple):
    """Pseudo-log-likelihood of one text in nats.

    `tokens` has (token, log P(token | all others)) for each token, `total` is their sum.
    """

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
    """Load a run, a checkpoint, an exported, fine-tuned or stock folder, or a weights file.

    Stock folders: ALBERT, BERT, ELECTRA, ModernBERT. `device` is cpu, cuda, cuda:1, mps or auto:
    a CUDA GPU if there is one. `batch_tokens` limits the tokens per batch, padding included, and so
    the memory: by default 65,536 on CUDA, else 4,096. `discriminator` is the folder of another
    discriminator; `config` and `tokenizer` are needed if they are not next to the weights.
    `num_hidden_layers` is another depth of the encoder, a multiple of its groups; a separate
    generator keeps its own. Returns an InferenceModel. Raises UsageError for a missing path or
    device, CheckpointError for unsupported or damaged files.
    """
    target = _as_device(device)
    if batch_tokens is None:
        batch_tokens = 1 << 16 if target.type == "cuda" else 4096
    require(batch_tokens >= 1, f"batch_tokens={batch_tokens} must be at least 1")
    mlm_files = hub.locate(path, "any", config, tokenizer)
    is_run = os.path.isdir(Path(path, "generator"))  # no error for a name that is too long
    files = hub.locate(path) if is_run or mlm_files.part else mlm_files
    if discriminator is not None:
        files = hub.locate(discriminator, "discriminator")
    stored = hub.read_stored(files, num_hidden_layers)
    if "predictions" in stored.parts and not (discriminator or config or tokenizer):
        mlm_files = files  # of a run: the MLM head of its encoder, not that of the generator
    mlm = stored if mlm_files == files else hub.read_stored(mlm_files)
    is_generator = mlm is not stored and "predictions" in mlm.parts
    if is_generator and num_hidden_layers is not None:
        LOG.info(
            "notice: num_hidden_layers is for the encoder; "
            f"the generator keeps {mlm.config.num_hidden_layers}"
        )
    words = _load_tokenizer(stored, mlm, is_elsewhere=tokenizer is not None)
    weights = tuple(dict.fromkeys((files.weights, mlm_files.weights)))
    models = _build(stored, mlm, words, target)
    return InferenceModel(words, *models, target, batch_tokens, Path(path), weights)


def _load_tokenizer(stored: hub.Stored, mlm: hub.Stored, is_elsewhere: bool) -> Any:
    """The tokenizer of the models. Raises CheckpointError if it does not fit their vocabularies.

    They may have more rows than it has tokens, which are never predicted, unless it is elsewhere.
    """
    tokenizer = load_tokenizer(mlm.files.tokenizer)
    tokenizer("")  # resets truncation and padding before threads share it
    count = len(tokenizer)
    rows = mlm.config.vocab_size
    size = stored.config.vocab_size
    if size in (count, rows):
        size = rows
    fits = size == rows >= count
    if is_elsewhere:  # only its size shows whether it belongs to the model
        fits = size == rows == count
    if not fits:
        raise CheckpointError(
            f"the tokenizer in {mlm.files.tokenizer} has {count} tokens, the model {size}; put the "
            "tokenizer it was trained with next to its weights (electra-albert demo also takes "
            "--tokenizer)"
        )
    if rows > count:
        LOG.info(
            f"{rows - count} rows of the word embeddings have no token in the tokenizer and are "
            "never predicted"
        )
    return tokenizer


def _build(
    stored: hub.Stored, mlm: hub.Stored, tokenizer: Any, device: torch.device
) -> tuple[EncoderModel, Generator | None, Discriminator | None, Any]:
    """The models of an Engine, in its order. Shared weights are kept once."""
    stored = hub.without_unused_rows(stored, len(tokenizer))
    mlm = hub.without_unused_rows(mlm, len(tokenizer))
    encoder = hub.build(stored, EncoderModel).to(device)
    has_detector = "discriminator_predictions" in stored.parts
    detector = hub.build(stored, Discriminator) if has_detector else None
    generator = hub.build(mlm, Generator) if "predictions" in mlm.parts else None
    task = finetuned.load_fine_tuned(stored, tokenizer)
    models = (detector, generator, getattr(task, "model", None))
    for model in filter(None, models):
        if model is not generator or mlm.files == stored.files:
            model.embeddings = encoder.embeddings
            model.encoder = encoder.encoder
        model.to(device)
    return encoder, generator, detector, task


def _as_device(device: str | torch.device) -> torch.device:
    """Test a device and return it. Raises UsageError if it does not work."""
    name = str(device)
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name).cpu()
        return torch.device(name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise UsageError(
            f"device={name!r} cannot be used ({reason}); give cpu, cuda, cuda:1, mps or auto"
        ) from None


@dataclass(frozen=True, repr=False)
class InferenceModel(Engine):
    """A model returned by `load_model`; repr() lists the methods that its heads support.

    Each method takes one text or a list of texts and returns one result or a list in the same
    order; a pair is a tuple (str, str). Threads may share a model. Methods raise UsageError if the
    model lacks the head or does not take such texts, and DataError for a text longer than the
    model's maximum, unless truncate=True.
    """

    def __repr__(self) -> str:
        config = self.encoder.config
        calls = ["features"]
        if self.generator:
            calls += ["fill_mask", "rewrite"]
        if self.generator or self.energies:
            calls += ["pseudo_log_likelihood", "token_log_likelihoods"]
        if self.discriminator:
            calls.append("replaced_probabilities")
        if not isinstance(self.task, str):
            calls.append(finetuned.CALLS[self.task.model.head.kind])
        return (
            f"InferenceModel({str(self.path)!r} on {self.device}: "
            f"{config.num_hidden_layers} layers, hidden size {config.hidden_size}, "
            f"vocabulary {config.vocab_size:,}, at most {config.max_position_embeddings} tokens; "
            f"{', '.join(calls)})"
        )

    @torch.no_grad()
    def fill_mask(
        self,
        texts: OneOrMore,
        top_k: int = 5,
        targets: str | Iterable[str] | None = None,
        *,
        truncate: bool = False,
    ) -> Any:
        """Predict the `top_k` most likely tokens for each [MASK], as the fill-mask pipeline does.

        Returns a list of {"score", "token", "token_str", "sequence"} for a text with one [MASK],
        else a list of lists; unlike in the pipeline, a list of one text returns a list of one
        result. `targets` limits predictions to these tokens. Raises DataError for a text without
        [MASK], UsageError for top_k < 1 or a target of several tokens.
        """
        generator = self.masked_token_model("fill_mask")
        tokenizer = self.tokenizer
        mask_id = tokenizer.mask_token_id
        require(top_k >= 1, f"top_k={top_k} must be at least 1")
        columns: Any = slice(None)
        if targets is not None:
            columns = engine.target_ids(tokenizer, targets)
        allowed = torch.arange(generator.config.vocab_size, device=self.device)[columns]
        top_k = min(top_k, len(allowed))
        sequences = self.encode(texts, generator, truncate, is_filled=True)
        for index, sequence in enumerate(sequences):
            if mask_id not in sequence.ids:
                read = " among the tokens read" if truncate else ""
                text = engine.quote(texts, index)
                raise DataError(f"{text} has no [MASK]{read}; replace a word by [MASK]")
        results: list[list[Any]] = [[] for _ in sequences]  # predictions for each mask
        for padded, indices in self.batches(sequences):
            is_mask = padded[0] == mask_id  # [B, L]
            masked = generator(*padded)[is_mask]  # [M, D]
            for logits, cells in masked_logits(generator, masked, is_mask.nonzero()):
                probabilities = logits.softmax(-1)[:, columns]
                scores, order = probabilities.topk(top_k)
                best = zip(scores.tolist(), allowed[order].tolist(), strict=True)
                for (row, position), choices in zip(cells.tolist(), best, strict=True):
                    index = indices[row]
                    predictions = engine.as_predictions(
                        tokenizer, sequences[index].ids, position, *choices
                    )
                    results[index].append(predictions)
        return as_given(texts, [masks[0] if len(masks) == 1 else masks for masks in results])

    @torch.no_grad()
    def features(self, texts: Texts, pooling: Pooling = "mean", *, truncate: bool = False) -> Any:
        """Compute the last hidden states of a text or a pair, of the discriminator if there is one.

        Returns Features. `pooling` is mean (over the tokens without special ones, or over all of an
        empty text), cls (the vector of [CLS]) or pooler (the pooler's output). Raises UsageError if
        the model has no such pooling.
        """
        pooler = self.encoder.pooler
        poolings = ["mean", "cls"]
        if pooler is not None:
            poolings.append("pooler")
        require(
            pooling in poolings,
            f"pooling={pooling!r} is not supported by this model; "
            f"give one of {', '.join(poolings)}",
        )
        sequences = self.encode(texts, self.encoder, truncate)
        results: list[Any] = [None] * len(sequences)
        for padded, indices in self.batches(sequences):
            hidden_states = self.encoder(*padded)  # [B, L, D]
            at_cls = hidden_states[:, 0]
            if pooler is not None and pooling == "pooler":
                at_cls = pooler(at_cls).tanh()
            rows = zip(indices, hidden_states.cpu(), at_cls.cpu(), strict=True)
            for index, vectors, vector in rows:
                ids = sequences[index].ids
                tokens = vectors[: len(ids)].clone()  # [L, D], a copy that frees the padding
                pooled = vector.clone()
                if pooling == "mean":
                    positions = sequences[index].text_positions or slice(None)
                    pooled = tokens[positions].mean(0)
                subwords = self.tokenizer.convert_ids_to_tokens(ids)
                results[index] = Features(pooled, tokens, subwords)
        return as_given(texts, results)

    def replaced_probabilities(self, texts: Texts, *, truncate: bool = False) -> Any:
        """Detect replaced tokens in a text or a pair; returns a list of TokenScore.

        Paper: ELECTRA section 2.
        """
        sequences = self.encode(texts, self.encoder, truncate)
        results = []
        for sequence, logits in zip(sequences, self.detect(sequences), strict=True):
            tokens = self.tokenizer.convert_ids_to_tokens(sequence.ids)
            described = token_texts(self.tokenizer, sequence.ids)
            spans = engine.spans_of(sequence.encoding, described, sequence.text)
            scores = logits.sigmoid().tolist()
            results.append(
                [TokenScore(tokens[at], *spans[at], scores[at]) for at in sequence.text_positions]
            )
        return as_given(texts, results)

    def pseudo_log_likelihood(self, texts: Texts, *, truncate: bool = False) -> Any:
        """Sum over tokens of log P(token | all others), a float in nats.

        A model trained with `electric` computes all of them in one forward pass. Papers: Salazar et
        al. 2020 section 2.2, Clark et al. 2020 (Electric).
        """
        result = self.token_log_likelihoods(texts, truncate=truncate)
        if isinstance(texts, list):
            return [likelihood.total for likelihood in result]
        return result.total

    @torch.no_grad()
    def token_log_likelihoods(self, texts: Texts, *, truncate: bool = False) -> Any:
        """Pseudo-log-likelihood of a text or a pair with the term of each token, in nats.

        Returns a Likelihood.
        """
        model = self.energies or self.masked_token_model("pseudo_log_likelihood")
        sequences = self.encode(texts, model, truncate)
        if isinstance(model, Generator):
            terms = self._masked_terms(model, sequences)
        else:
            terms = []
            for energies, sequence in zip(self.per_token(model, sequences), sequences, strict=True):
                log_probabilities = -energies[sequence.text_positions]
                terms.append(log_probabilities.tolist())
        results = []
        for sequence, nats in zip(sequences, terms, strict=True):
            ids = [sequence.ids[at] for at in sequence.text_positions]
            tokens = self.tokenizer.convert_ids_to_tokens(ids)
            by_token = list(zip(tokens, nats, strict=True))
            results.append(Likelihood(math.fsum(nats), by_token))
        return as_given(texts, results)

    def _masked_terms(
        self, generator: Generator, sequences: list[engine.TokenSequence]
    ) -> list[list[float]]:
        """log P(token | all others) of each token of each sequence, which is masked alone."""
        copies = []  # one for each token
        positions: list[int] = []  # of the token that is masked in a copy
        for sequence in sequences:
            copies += [sequence] * len(sequence.text_positions)
            positions += sequence.text_positions
        nats: dict[int, float] = {}
        for (ids, *rest), indices in self.batches(copies):
            columns = torch.tensor([positions[at] for at in indices])
            cells = torch.arange(len(indices)), columns
            labels = ids[cells]  # [B]
            ids[cells] = self.tokenizer.mask_token_id
            masked = generator(ids, *rest)[cells]  # [B, D]
            parts = masked_logits(generator, masked, labels)
            values = [-cross_entropy(*part, reduction="none") for part in parts]
            nats |= zip(indices, torch.cat(values).tolist(), strict=True)
        in_order = (nats[index] for index in sorted(nats))
        return [list(islice(in_order, len(sequence.text_positions))) for sequence in sequences]

    def rewrite(
        self,
        texts: OneOrMore,
        mask_rate: float = 0.15,
        temperature: float = 1.0,
        seed: int = 42,
    ) -> Any:
        """Replace a share `mask_rate` of the tokens by samples of the MLM head at `temperature`.

        Returns a Rewritten. Samples depend on `seed` and the index of the text, which may be of any
        length. In a text with [MASK], which must not be too long, each gets the best prediction.
        Raises UsageError for invalid options.
        """
        numbered = list(enumerate(as_texts(texts), 1))
        draw = Draw(mask_rate, temperature, seed)
        return as_given(texts, rewrite(self, numbered, draw))

    classify = finetuned.classify
    tag = finetuned.tag
    answer = finetuned.answer
    choose = finetuned.choose
