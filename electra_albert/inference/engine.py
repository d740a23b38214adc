"""Models in memory, texts as sequences of tokens, and their batches. Dimensions: B batch, L length."""

import copy
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from electra_albert.contracts import DataError, UsageError
from electra_albert.corpus.tokenizer import TokenText
from electra_albert.model.electra import Discriminator, Generator
from electra_albert.model.encoder import EncoderModel

MASK = "[MASK]"  # as a user writes it, whatever the tokenizer calls its mask
WORD_MARKS = ("", "▁", "Ġ")  # tokens that mark the beginning of a word and have no other text

Text = str | tuple[str, str]  # one text, or a pair of them
OneOrMore = str | list[str]
Padded = tuple[Tensor, Tensor, Tensor]  # input_ids int64, attention_mask bool, token_type_ids int64, each [B, L]


class TokenSequence(NamedTuple):
    """A text or a pair as a model reads it, special tokens included."""

    ids: list[int]
    types: list[int]
    text_positions: Sequence[int] = ()  # without [CLS], [SEP], padding and masks, even those written in the text
    text: Text = ""
    encoding: Any = None  # of `tokenizers`: knows the characters of each token


@dataclass(frozen=True, repr=False)
class Engine:
    """The models that the calls of inference need, and how much they compute at once."""

    tokenizer: Any
    encoder: EncoderModel | Generator  # of the discriminator, where there is one
    generator: Generator | None
    discriminator: Discriminator | None
    task: Any  # a FineTuned, or why there is none
    device: torch.device
    batch_tokens: int
    path: Path
    weights: tuple[Path, ...] = ()  # the files they were read from

    def masked_token_model(self, call: str) -> Generator:
        """The generator; UsageError that names the call where there is none."""
        if self.generator is None:
            raise UsageError(f"{call} needs a masked-token head, and this model has none; load a run or its generator")
        return self.generator

    def encode(self, given: object, model: Any, truncate: bool, *, is_filled: bool = False) -> list[TokenSequence]:
        """Sequences for a model, is_filled: with masks. DataError for one too long, UsageError for an unfit pair."""
        tokenizer, longest, found = self.tokenizer, model.config.max_position_embeddings, []
        texts = as_texts(given, may_be_pairs=not is_filled)
        if is_filled:
            texts = [text.replace(MASK, tokenizer.mask_token) for text in texts]
        special = {tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id, tokenizer.mask_token_id}
        encodings = encode_all(tokenizer, texts)
        if truncate and any(len(encoding.ids) > longest for encoding in encodings):
            backend = copy.deepcopy(tokenizer.backend_tokenizer)
            backend.enable_truncation(longest)
            encodings = backend.encode_batch(texts)
        for index, (text, encoding) in enumerate(zip(texts, encodings, strict=True)):
            ids, types = encoding.ids, encoding.type_ids
            if len(ids) > longest:
                raise DataError(f"{quote(given, index)} {too_long(len(ids), longest)} or give truncate=True")
            if max(types, default=0) >= model.config.type_vocab_size:
                raise UsageError(f"{quote(given, index)}: the model knows one segment; give single texts")
            positions = [position for position, token in enumerate(ids) if token not in special]
            found.append(TokenSequence(ids, types, positions, text, encoding))
        return found

    @torch.no_grad()  # inference_mode would give tensors that nothing can be trained on
    def detect(self, sequences: Sequence[TokenSequence]) -> list[Tensor]:
        """The discriminator's logits of each sequence's tokens, special ones included: float32 [L] on the CPU."""
        if self.discriminator is None:
            raise UsageError("replaced_probabilities needs a detection head, which this model lacks; load a run of rtd")
        found: list[Any] = [None] * len(sequences)
        for padded, chosen in self.batches(sequences):
            for row, index in zip(self.discriminator(*padded).cpu(), chosen, strict=True):
                found[index] = row[: len(sequences[index].ids)]
        return found

    def batches(self, sequences: Sequence[TokenSequence]) -> Iterator[tuple[Padded, list[int]]]:
        """Batches of sequences of similar length, and which of the sequences are in each."""
        for chosen in plan_batches([len(sequence.ids) for sequence in sequences], self.batch_tokens):
            rows = [torch.tensor(sequences[index][:2]) for index in chosen]  # each ids and types, [2, L]
            ids = pad_sequence([row[0] for row in rows], True, self.tokenizer.pad_token_id)  # [B, L]
            is_real = pad_sequence([torch.ones_like(row[0], dtype=torch.bool) for row in rows], True)  # [B, L]
            types = pad_sequence([row[1] for row in rows], True)  # [B, L]
            yield (ids.to(self.device), is_real.to(self.device), types.to(self.device)), chosen


def as_texts(given: object, *, may_be_pairs: bool = False) -> list[Any]:
    """One text, a pair where pairs make sense, or a list of them, as a list; UsageError for anything else."""
    texts: list[Any] = given if isinstance(given, list) else [given]
    for index, text in enumerate(texts):
        parts = text if may_be_pairs and isinstance(text, tuple) and len(text) == 2 else (text,)
        if not all(isinstance(part, str) for part in parts):
            wanted = "a str, a pair (str, str)" if may_be_pairs else "a str"
            raise UsageError(f"{quote(given, index)} is no text; give {wanted} or a list of them")
        if any("\ud800" <= character <= "\udfff" for part in parts for character in part):
            raise DataError(f"{quote(given, index)} holds half a character; decode it again")
    return texts


def as_given(given: object, results: list[Any]) -> Any:
    """The results for a list, the one result for a text."""
    return results if isinstance(given, list) else results[0]


def quote(given: object, index: int) -> str:
    """The beginning of a text for a message, with its position where the caller gave a list."""
    return f"texts[{index}]: {given[index]!r:.60}" if isinstance(given, list) else f"{given!r:.60}"


def encode_all(tokenizer: Any, texts: Sequence[Text], *, is_bare: bool = False) -> list[Any]:
    """The encodings of texts, bare or with [CLS] and [SEP]. Changes nothing in the tokenizer, which threads share."""
    return list(tokenizer.backend_tokenizer.encode_batch(list(texts), add_special_tokens=not is_bare))


def target_ids(tokenizer: Any, targets: str | Iterable[str]) -> list[int]:
    """The ids of targets; UsageError for one that is not in the vocabulary and is cut into several tokens."""
    vocabulary, found = tokenizer.get_vocab(), dict[int, None]()
    for target in [targets] if isinstance(targets, str) else targets:
        is_known = target in vocabulary
        ids = [vocabulary[target]] if is_known else encode_all(tokenizer, as_texts(target), is_bare=True)[0].ids
        if len(ids) != 1:
            cut = " ".join(tokenizer.convert_ids_to_tokens(ids)) or "nothing"
            raise UsageError(f"target {target!r:.60} is no token: it is cut into {cut}; give a token")
        found[ids[0]] = None
    return list(found)


def spans_of(encoding: Any, tokens: Sequence[TokenText], text: Text) -> list[tuple[int, int]]:
    """The characters that go with each token: no space before it, accents after it; of special ones around (0, 0)."""
    texts, spans = (text,) if isinstance(text, str) else text, [(0, 0)] * len(tokens)
    owners, offsets = encoding.sequence_ids, encoding.offsets
    for at, (owner, (start, end)) in enumerate(zip(owners, offsets, strict=True)):
        if owner is not None:
            own = texts[owner]
            limit = offsets[at + 1][0] if owners[at + 1 : at + 2] == [owner] else len(own)
            while start < end and own[start].isspace():
                start += 1
            end = start if tokens[at].text in WORD_MARKS else end  # a mark of a word's beginning has no characters
            while start < end < limit and unicodedata.category(own[end]).startswith("M"):
                end += 1
            spans[at] = start, end
    return spans


def printable(text: str) -> str:
    """The text without control characters, which could move a terminal's cursor."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def shown(token: str) -> str:
    """A token as people write it, without the space before it; one that only marks a word's beginning is ␣."""
    bare = token.strip()
    return "␣" if bare in WORD_MARKS else printable(bare)


def too_long(tokens: int, longest: int) -> str:
    """The end of a message on a text of so many tokens, special ones included, of which the model reads `longest`."""
    return f"is {tokens} tokens long, the model reads {longest}; shorten it"


def plan_batches(lengths: Sequence[int], batch_tokens: int) -> list[list[int]]:
    """Indices of sequences of similar length, at most `batch_tokens` a batch with padding, but one at least."""
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if not batches or (len(batches[-1]) + 1) * lengths[index] > batch_tokens:
            batches.append([])
        batches[-1].append(index)
    return batches
