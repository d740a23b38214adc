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
from electra_albert.corpus.text_encoder import cover
from electra_albert.corpus.token_texts import TokenText
from electra_albert.model.electra import Discriminator, Generator
from electra_albert.model.encoder import EncoderModel

MASK = "[MASK]"  # in the user's text, for every tokenizer
WORD_MARKS = ("", "▁", "Ġ")  # tokens without text that mark the start of a word

Text = str | tuple[str, str]  # a text or a pair
OneOrMore = str | list[str]
Padded = tuple[Tensor, Tensor, Tensor]  # input_ids int64, attention_mask bool, token_type_ids int64, each [B, L]


class TokenSequence(NamedTuple):
    """Input of a model: the tokens of a text or a pair, special tokens included."""

    ids: list[int]
    types: list[int]
    text_positions: Sequence[int] = ()  # without [CLS], [SEP], padding and [MASK], even if the text contains them
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
        return None if self.detector is None or self.detector.has_energies else self.detector

    @property
    def energies(self) -> Discriminator | None:
        """The model trained with `electric`, whose head returns -log P(token | all others)."""
        return None if self.detector is None or not self.detector.has_energies else self.detector

    def masked_token_model(self, call: str) -> Generator:
        """The generator. Raises UsageError, which names the call, if there is none."""
        if self.generator is None:
            raise UsageError(f"{call} needs a masked-token head, which this model lacks; load a run or its generator")
        return self.generator

    def encode(self, given: object, model: Any, truncate: bool, *, is_filled: bool = False) -> list[TokenSequence]:
        """Tokenize texts for a model; is_filled: [MASK] becomes the mask token. Raises DataError and UsageError."""
        tokenizer, longest, found = self.tokenizer, model.config.max_position_embeddings, []
        texts = as_texts(given, may_be_pairs=not is_filled)
        if is_filled:
            texts = [text.replace(MASK, tokenizer.mask_token) for text in texts]
        special = {tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id, tokenizer.mask_token_id}
        encodings = tokenizer.backend_tokenizer.encode_batch(texts)
        if truncate and any(len(encoding.ids) > longest for encoding in encodings):
            backend = copy.deepcopy(tokenizer.backend_tokenizer)
            backend.enable_truncation(longest)
            encodings = backend.encode_batch(texts)
        for index, (text, encoding) in enumerate(zip(texts, encodings, strict=True)):
            ids, types = encoding.ids, encoding.type_ids
            if len(ids) > longest:
                raise DataError(f"{quote(given, index)} {too_long(len(ids), longest)} or give truncate=True")
            if max(types, default=0) >= model.config.type_vocab_size:
                raise UsageError(f"{quote(given, index)}: the model has one segment; give single texts")
            positions = [position for position, token in enumerate(ids) if token not in special]
            found.append(TokenSequence(ids, types, positions, text, encoding))
        return found

    def detect(self, sequences: Sequence[TokenSequence]) -> list[Tensor]:
        """Discriminator logits of each sequence, special tokens included: float32 [L] on the CPU."""
        if self.discriminator is None:
            raise UsageError("replaced_probabilities needs a detection head, which this model lacks; load a run of rtd")
        return self.per_token(self.discriminator, sequences)

    @torch.no_grad()  # outputs of inference_mode could not be used in training
    def per_token(self, model: Discriminator, sequences: Sequence[TokenSequence]) -> list[Tensor]:
        """The number that a model returns for each token, special tokens included: float32 [L] on the CPU."""
        found: list[Any] = [None] * len(sequences)
        for padded, chosen in self.batches(sequences):
            for numbers, index in zip(model(*padded).float().cpu(), chosen, strict=True):
                found[index] = numbers[: len(sequences[index].ids)]
        return found

    def batches(self, sequences: Sequence[TokenSequence]) -> Iterator[tuple[Padded, list[int]]]:
        """Batches of sequences of similar length, each with the indices of its sequences."""
        for chosen in plan_batches([len(sequence.ids) for sequence in sequences], self.batch_tokens):
            pairs = [torch.tensor(sequences[index][:2]) for index in chosen]  # ids and types, each [2, L]
            ids = pad_sequence([pair[0] for pair in pairs], True, self.tokenizer.pad_token_id)  # [B, L]
            is_real = pad_sequence([torch.ones_like(pair[0], dtype=torch.bool) for pair in pairs], True)  # [B, L]
            types = pad_sequence([pair[1] for pair in pairs], True)  # [B, L]
            yield (ids.to(self.device), is_real.to(self.device), types.to(self.device)), chosen


def as_texts(given: object, *, may_be_pairs: bool = False) -> list[Any]:
    """A text, or a pair if may_be_pairs, or a list of them, as a list. Raises UsageError for anything else."""
    texts: list[Any] = given if isinstance(given, list) else [given]
    for index, text in enumerate(texts):
        parts = text if may_be_pairs and isinstance(text, tuple) and len(text) == 2 else (text,)
        if not all(isinstance(part, str) for part in parts):
            wanted = "a str, a pair (str, str)" if may_be_pairs else "a str"
            raise UsageError(f"{quote(given, index)} is not a text; give {wanted} or a list of them")
        if any("\ud800" <= character <= "\udfff" for part in parts for character in part):
            raise DataError(f"{quote(given, index)} contains half a character (a surrogate); decode it again")
    return texts


def as_given(given: object, results: list[Any]) -> Any:
    """The list of results if a list was given, else the only result."""
    return results if isinstance(given, list) else results[0]


def quote(given: object, index: int) -> str:
    """The start of a text for a message, with its index if a list was given."""
    return f"texts[{index}]: {given[index]!r:.60}" if isinstance(given, list) else f"{given!r:.60}"


def target_ids(tokenizer: Any, targets: str | Iterable[str]) -> list[int]:
    """Token ids of targets. Raises UsageError for a target that is several tokens."""
    vocabulary, encode, found = tokenizer.get_vocab(), tokenizer.backend_tokenizer.encode, dict[int, None]()
    for target in [targets] if isinstance(targets, str) else targets:
        is_known = target in vocabulary
        ids = [vocabulary[target]] if is_known else encode(*as_texts(target), add_special_tokens=False).ids
        if len(ids) != 1:
            cut = " ".join(tokenizer.convert_ids_to_tokens(ids)) or "nothing"
            raise UsageError(f"target {target!r:.60} is not a single token but {cut}; give a token of the vocabulary")
        found[ids[0]] = None
    return list(found)


def spans_of(encoding: Any, tokens: Sequence[TokenText], text: Text) -> list[tuple[int, int]]:
    """Character span of each token, without leading spaces, with the accents after it; (0, 0) for special tokens."""
    owners, spans = encoding.sequence_ids, [(0, 0)] * len(tokens)
    for owner, source in enumerate((text,) if isinstance(text, str) else text):
        positions = [at for at, number in enumerate(owners) if number == owner]
        covered = cover(source, [encoding.offsets[at] for at in positions])
        for at, (start, end) in zip(positions, covered, strict=True):
            is_mark = tokens[at].text in WORD_MARKS  # without characters
            spans[at] = (start, start if is_mark else end)
    return spans


def printable(text: str) -> str:
    """Replace control characters, which could move a terminal's cursor."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def shown(token: str) -> str:
    """A token for display, without the space before it; a token that only marks the start of a word is ␣."""
    bare = token.strip()
    return "␣" if bare in WORD_MARKS else printable(bare)


def too_long(tokens: int, longest: int) -> str:
    """End of an error message for a text of `tokens` tokens, special tokens included; `longest` is the maximum."""
    return f"is {tokens} tokens long, the maximum is {longest}; shorten it"


def plan_batches(lengths: Sequence[int], batch_tokens: int) -> list[list[int]]:
    """Indices of sequences per batch, by length: at most `batch_tokens` with padding, at least one sequence."""
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if not batches or (len(batches[-1]) + 1) * lengths[index] > batch_tokens:
            batches.append([])
        batches[-1].append(index)
    return batches
