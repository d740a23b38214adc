"""Tokenization and batching for inference. Dimensions: B batch, L length."""

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from electra_albert.contracts import DataError, UsageError
from electra_albert.model.electra import Discriminator, Generator
from electra_albert.model.encoder import EncoderModel
from electra_albert.tokenization.text_encoder import cover
from electra_albert.tokenization.token_texts import TokenText
from electra_albert.tokenization.tokenizer import special_ids

MASK = "[MASK]"  # in the user's text, for every tokenizer
WORD_MARKS = ("", "▁", "Ġ")  # tokens without text that mark the start of a word

Text = str | tuple[str, str]  # a text or a pair
OneOrMore = str | list[str]
# input_ids int64, attention_mask bool, token_type_ids int64, each [B, L]
Padded = tuple[Tensor, Tensor, Tensor]


class TokenSequence(NamedTuple):
    """Input of a model: the tokens of a text or a pair, special tokens included."""

    ids: list[int]
    types: list[int]
    # Without [CLS], [SEP], padding and [MASK], even if the text contains them.
    text_positions: Sequence[int] = ()
    text: Text = ""
    encoding: Any = None  # tokenizers.Encoding, with the character offsets


@dataclass(frozen=True, repr=False)
class Engine:
    """Loaded models, their tokenizer and the batch size; base class of InferenceModel."""

    tokenizer: Any
    encoder: EncoderModel | Generator  # the discriminator's, if there is one
    generator: Generator | None
    detector: Discriminator | None  # `discriminator` or `energies`
    task: Any  # FineTuned, or a str: the reason why there is none
    device: torch.device
    batch_tokens: int
    path: Path
    weights: tuple[Path, ...] = ()  # weights files of the models

    @property
    def discriminator(self) -> Discriminator | None:
        """The model that detects replaced tokens."""
        if self.energies:
            return None
        return self.detector

    @property
    def energies(self) -> Discriminator | None:
        """The model trained with `electric`, whose head returns -log P(token | all others)."""
        if self.detector and self.detector.has_energies:
            return self.detector
        return None

    def masked_token_model(self, call: str) -> Generator:
        """The generator. Raises UsageError, which names the call, if there is none."""
        if self.generator is None:
            raise UsageError(
                f"{call} needs a masked-token head, which this model lacks; "
                "load a run or its generator"
            )
        return self.generator

    def encode(
        self, given: object, model: Any, truncate: bool, *, is_filled: bool = False
    ) -> list[TokenSequence]:
        """Tokenize texts for a model; is_filled: [MASK] becomes the mask token.

        Raises DataError for a text that is too long, UsageError for a pair if the model has one
        segment, and both as as_texts does.
        """
        tokenizer = self.tokenizer
        backend = tokenizer.backend_tokenizer
        longest = model.config.max_position_embeddings
        texts = as_texts(given, may_be_pairs=not is_filled)
        if is_filled:
            texts = [text.replace(MASK, tokenizer.mask_token) for text in texts]
        encodings = backend.encode_batch(texts)
        if truncate and any(len(encoding.ids) > longest for encoding in encodings):
            backend = copy.deepcopy(backend)
            backend.enable_truncation(longest)
            encodings = backend.encode_batch(texts)
        roles = special_ids(tokenizer)
        special = {roles.cls, roles.sep, roles.pad, roles.mask}
        sequences = []
        for index, (text, encoding) in enumerate(zip(texts, encodings, strict=True)):
            ids = encoding.ids
            types = encoding.type_ids
            if len(ids) > longest:
                problem = too_long(len(ids), longest)
                raise DataError(f"{quote(given, index)} {problem} or give truncate=True")
            if max(types, default=0) >= model.config.type_vocab_size:
                raise UsageError(
                    f"{quote(given, index)}: the model has one segment; give single texts"
                )
            positions = [position for position, token in enumerate(ids) if token not in special]
            sequences.append(TokenSequence(ids, types, positions, text, encoding))
        return sequences

    def detect(self, sequences: Sequence[TokenSequence]) -> list[Tensor]:
        """Discriminator logits of each sequence, as per_token. Raises UsageError without one."""
        if self.discriminator is None:
            raise UsageError(
                "replaced_probabilities needs a detection head, which this model lacks; "
                "load a run of rtd"
            )
        return self.per_token(self.discriminator, sequences)

    @torch.no_grad()  # outputs of inference_mode could not be used in training
    def per_token(self, model: Discriminator, sequences: Sequence[TokenSequence]) -> list[Tensor]:
        """A model's output for each token of each sequence: float32 [L] on the CPU."""
        results: list[Any] = [None] * len(sequences)
        for padded, indices in self.batches(sequences):
            for numbers, index in zip(model(*padded).float().cpu(), indices, strict=True):
                results[index] = numbers[: len(sequences[index].ids)]
        return results

    def batches(self, sequences: Sequence[TokenSequence]) -> Iterator[tuple[Padded, list[int]]]:
        """Batches of sequences of similar length, each with the indices of its sequences."""
        lengths = [len(sequence.ids) for sequence in sequences]
        for indices in plan_batches(lengths, self.batch_tokens):
            pairs = [
                torch.tensor(sequences[index][:2]).T for index in indices
            ]  # ids, types: [L, 2]
            padded = pad_sequence(pairs, batch_first=True, padding_value=-1).to(self.device)
            ids, types = padded.unbind(-1)  # each [B, L]
            is_real = ids >= 0
            ids = ids.where(is_real, self.tokenizer.pad_token_id)
            yield (ids, is_real, types.clamp(min=0)), indices


def as_texts(given: object, *, may_be_pairs: bool = False) -> list[Any]:
    """A text, or a pair if may_be_pairs, or a list of them, as a list.

    Raises UsageError for anything else, DataError for text that cannot be encoded in UTF-8.
    """
    texts: list[Any] = given if isinstance(given, list) else [given]
    for index, text in enumerate(texts):
        parts = [text]
        if may_be_pairs and isinstance(text, tuple) and len(text) == 2:
            parts = [*text]
        for part in parts:
            if not isinstance(part, str):
                types = "a str, a pair (str, str)" if may_be_pairs else "a str"
                raise UsageError(f"{quote(given, index)} is not a text; give {types} or a list")
            if any("\ud800" <= character <= "\udfff" for character in part):
                raise DataError(
                    f"{quote(given, index)} contains half a character (a surrogate); "
                    "decode it again"
                )
    return texts


def as_given(given: object, results: list[Any]) -> Any:
    """The list of results if a list was given, else the only result."""
    if isinstance(given, list):
        return results
    return results[0]


def quote(given: object, index: int) -> str:
    """The start of a text for a message, with its index if a list was given."""
    if isinstance(given, list):
        return f"texts[{index}]: {given[index]!r:.60}"
    return f"{given!r:.60}"


def target_ids(tokenizer: Any, targets: str | Iterable[str]) -> list[int]:
    """Distinct token ids of targets. Raises UsageError for none or one of several tokens."""
    vocabulary = tokenizer.get_vocab()
    single_ids = []
    if isinstance(targets, str):
        targets = [targets]
    for target in targets:
        ids = [vocabulary.get(target)]
        if ids == [None]:
            encode = tokenizer.backend_tokenizer.encode
            ids = encode(*as_texts(target), add_special_tokens=False).ids
        if len(ids) != 1:
            tokens = " ".join(tokenizer.convert_ids_to_tokens(ids)) or "nothing"
            raise UsageError(
                f"target {target!r:.60} is not a single token but {tokens}; "
                "give a token of the vocabulary"
            )
        single_ids += ids
    if not single_ids:
        raise UsageError("targets is empty; give tokens of the vocabulary, or None for all")
    return list(dict.fromkeys(single_ids))


def as_predictions(
    tokenizer: Any, ids: list[int], position: int, scores: list[float], tokens: list[int]
) -> list[dict[str, Any]]:
    """Results for the mask at a position of a sequence, as in the fill-mask pipeline."""
    mask_id = tokenizer.mask_token_id  # a slow attribute, as pad_token_id
    pad_id = tokenizer.pad_token_id
    # With several masks the special tokens are kept, or the other masks would be lost.
    is_only = ids.count(mask_id) == 1
    predictions = []
    for score, token in zip(scores, tokens, strict=True):
        filled = [*ids[:position], token, *ids[position + 1 :]]
        filled = [number for number in filled if number != pad_id]
        text = tokenizer.decode([token])
        sequence = tokenizer.decode(filled, skip_special_tokens=is_only)
        predictions.append(
            {"score": score, "token": token, "token_str": text, "sequence": sequence}
        )
    return predictions


def spans_of(encoding: Any, tokens: Sequence[TokenText], text: Text) -> list[tuple[int, int]]:
    """Characters [start, end) of each token, without spaces before it, with accents after it.

    Of a pair, they are counted in the token's own text; (0, 0) for special tokens. For example
    "The  owl" with the tokens [CLS] ▁The ▁owl [SEP]: (0, 0), (0, 3), (5, 8), (0, 0).
    """
    spans = [(0, 0)] * len(tokens)
    offsets = encoding.offsets  # each access builds them again
    sources = (text,) if isinstance(text, str) else text
    for number, source in enumerate(sources):
        positions = [at for at, owner in enumerate(encoding.sequence_ids) if owner == number]
        covered = cover(source, [offsets[at] for at in positions])
        for at, (start, end) in zip(positions, covered, strict=True):
            if tokens[at].text in WORD_MARKS:
                end = start  # without characters
            spans[at] = (start, end)
    return spans


def printable(text: str) -> str:
    """Replace control characters, which could move a terminal's cursor."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def shown(token: str) -> str:
    """A token for display, without spaces; one that only marks the start of a word is ␣."""
    bare = token.strip()
    if bare in WORD_MARKS:
        return "␣"
    return printable(bare)


def too_long(tokens: int, longest: int) -> str:
    """End of a message for a text of `tokens` tokens, special ones included, above the maximum."""
    return f"is {tokens} tokens long, the maximum is {longest}; shorten it"


def plan_batches(lengths: Sequence[int], batch_tokens: int) -> list[list[int]]:
    """Indices of sequences for each batch, by length.

    Each has at most `batch_tokens` tokens with padding, but at least one sequence.
    """
    batches: list[list[int]] = []
    by_length = sorted(range(len(lengths)), key=lengths.__getitem__)
    for index in by_length:
        if not batches or (len(batches[-1]) + 1) * lengths[index] > batch_tokens:
            batches.append([])
        batches[-1].append(index)
    return batches
