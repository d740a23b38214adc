"""Text with tokens drawn again from the generator. Dimensions: B batch, L length, M masked, V vocab, D hidden."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from electra_albert.contracts import DataError, UsageError
from electra_albert.corpus.tokenizer import TokenText, special_ids, token_texts
from electra_albert.inference import engine
from electra_albert.inference.engine import WORD_MARKS, Engine, TokenSequence
from electra_albert.model.electra import Generator
from electra_albert.objectives.masking import choose_targets, maskable, sample

NO_CHARACTER = "\ufffd"
MASKS_AT_ONCE = 512  # bounds the memory that scores of the whole vocabulary take
LINES_AT_ONCE = 256  # lines that are read together, so that sequences of similar length can be batched
_BYTES = re.compile(f"{NO_CHARACTER}|<0x[0-9A-F]{{2}}>")  # a token of bytes that are no character by themselves


@dataclass(frozen=True)
class Draw:
    """How tokens are chosen and drawn."""

    mask_rate: float = 0.15
    temperature: float = 1.0
    seed: int = 42

    def __post_init__(self) -> None:
        if not 0 < self.mask_rate <= 1:
            raise UsageError(f"mask_rate={self.mask_rate} must be above 0 and at most 1")
        if not 0 < self.temperature < math.inf:
            raise UsageError(f"temperature={self.temperature} must be a number above 0")


class Replacement(NamedTuple):
    """A masked token and the text written there."""

    start: int  # first character in the original text
    end: int  # one past its last
    before: str
    after: str
    probability: float | None  # of having been replaced, where there is a discriminator
    is_changed: bool  # False where the generator drew the original token


class Rewritten(NamedTuple):
    """A text, its replacements in order, and the scores of its tokens as they are now."""

    original: str
    replaced: list[Replacement]
    is_filled: bool  # the user's own masks were filled by the best prediction; none was drawn
    scores: list[tuple[TokenText, float, bool]]  # token, probability of having been replaced, whether it is a new one

    @property
    def sequence(self) -> str:
        """The text as it is now."""
        return splice(self.original, self.replaced, lambda replacement: replacement.after)


class Line:
    """A line as tokens, before and after."""

    def __init__(self, tokenizer: Any, text: str, number: int = 0) -> None:
        self.text, self.number = text.replace(engine.MASK, tokenizer.mask_token), number
        # Some tokenizers have tokens for spaces, and a blank line stays blank.
        content = self.text if self.text.strip() else ""
        (encoding,) = engine.encode_all(tokenizer, [content], is_bare=True)
        self.ids: list[int] = encoding.ids
        self.tokens = token_texts(tokenizer, self.ids)
        self.spans = engine.spans_of(encoding, self.tokens, self.text)  # characters of each token
        self.is_filled = tokenizer.mask_token_id in self.ids
        self.after = list(self.ids)
        self.is_chosen = [False] * len(self.ids)
        self.probabilities = [math.nan] * len(self.ids)  # NaN where there is none


def rewrite_lines(model: Engine, lines: Iterable[str], draw: Draw) -> Iterator[tuple[str, Rewritten]]:
    """The new text of each line, with its ending, and its rewriting; in order."""
    numbered = enumerate(lines, 1)
    while block := list(islice(numbered, LINES_AT_ONCE)):
        texts = [(number, line.rstrip("\r\n")) for number, line in block]
        for (_, line), (_, text), result in zip(block, texts, rewrite(model, texts, draw), strict=True):
            yield result.sequence + line[len(text) :], result


def rewrite(model: Engine, numbered: Sequence[tuple[int, str]], draw: Draw) -> list[Rewritten]:
    """Rewrite lines, whose numbers key the draws, or fill the masks in them: DataError where one is too long."""
    generator, discriminator, tokenizer = model.masked_token_model("rewrite"), model.discriminator, model.tokenizer
    longest = min(one.config.max_position_embeddings for one in (generator, discriminator or generator))
    lines = [Line(tokenizer, text, number) for number, text in numbered]
    for line in lines:
        if line.is_filled and (length := len(line.ids) + 2) > longest:
            raise DataError(f"line {line.number}: {engine.quote(line.text, 0)} {engine.too_long(length, longest)}")
    cuts = [cut for line in lines for cut in _cut(line, longest - 2)]
    _redraw(model, cuts, draw)
    if discriminator is not None:
        kept = [(line, [at for at in cut if not _follows_mask(tokenizer, line, at)]) for line, cut in cuts]
        logits = model.detect([_sequence(tokenizer, [line.after[at] for at in own]) for line, own in kept])
        for (line, own), found in zip(kept, logits, strict=True):
            for position, probability in zip(own, found[1:-1].sigmoid().tolist(), strict=True):
                line.probabilities[position] = probability
    return [compose(tokenizer, line) for line in lines]


def _follows_mask(tokenizer: Any, line: Line, position: int) -> bool:
    """Whether a token only marks a word that the tokenizer begins after a mask, as in "[MASK].", not after a space."""
    is_after = position > 0 and line.ids[position - 1] == tokenizer.mask_token_id
    is_mark = is_after and line.tokens[position].text in WORD_MARKS
    return is_mark and not line.text[line.spans[position - 1][1] :][:1].isspace()


def _cut(line: Line, room: int) -> Iterator[tuple[Line, range]]:
    """The line in sequences of at most `room` tokens, cut before a word where there is one."""
    cut, count = 0, len(line.ids)
    while (first := cut) < count:
        ends = range(min(first + room, count), first, -1)
        cut = next((at for at in ends if at == count or line.tokens[at].starts_word), ends[0])
        yield line, range(first, cut)


def _sequence(tokenizer: Any, ids: list[int]) -> TokenSequence:
    return TokenSequence([tokenizer.cls_token_id, *ids, tokenizer.sep_token_id], [0] * (len(ids) + 2))


@torch.no_grad()
def _redraw(model: Engine, cuts: Sequence[tuple[Line, range]], draw: Draw) -> None:
    """Choose tokens of each cut by pretraining's own rules, or the user's masks, and draw them again."""
    tokenizer, generator = model.tokenizer, model.masked_token_model("rewrite")
    special = special_ids(tokenizer)
    sequences = [_sequence(tokenizer, line.ids[at.start : at.stop]) for line, at in cuts]
    for (ids, is_real, types), chosen in model.batches(sequences):
        own = [cuts[index] for index in chosen]
        example_id = torch.tensor([(line.number << 32) + at.start for line, at in own], device=ids.device)  # [B]
        is_filled = torch.tensor([line.is_filled for line, _ in own], device=ids.device)  # [B]
        targets = choose_targets(ids, maskable(ids, is_real, special), draw.mask_rate, draw.seed, example_id)
        is_chosen = torch.zeros_like(is_real).scatter(1, targets.positions, targets.weight > 0)  # [B, L]
        is_chosen = torch.where(is_filled[:, None], ids == special.mask, is_chosen)
        masked = generator(ids.masked_fill(is_chosen, special.mask), is_real, types)[is_chosen]  # [M, D]
        positions = is_chosen.nonzero().split(MASKS_AT_ONCE)
        for logits, (row, position) in zip(masked_logits(generator, masked), (at.T for at in positions), strict=True):
            logits[:, tokenizer.all_special_ids] = -math.inf  # differs from pretraining: a reader is shown text only
            drawn = sample(logits, draw.temperature, draw.seed, example_id[row], position)
            ids[row, position] = torch.where(is_filled[row], logits.argmax(-1), drawn)
        for (line, at), after, is_new in zip(own, ids.tolist(), is_chosen.tolist(), strict=True):
            line.after[at.start : at.stop] = after[1 : 1 + len(at)]  # without [CLS], [SEP] and padding
            line.is_chosen[at.start : at.stop] = is_new[1 : 1 + len(at)]


def masked_logits(generator: Generator, hidden_states: Tensor) -> Iterator[Tensor]:
    """Scores of every token, float32 [M, V], for at most MASKS_AT_ONCE of the hidden states [M, D] at a time."""
    return (generator.logits(part).float() for part in hidden_states.split(MASKS_AT_ONCE))


def splice(text: str, replaced: Iterable[Replacement], show: Callable[[Replacement], str]) -> str:
    """The text with `show` of each replacement in its place; replacements are apart and in order."""
    parts, reached = [], 0
    for replacement in replaced:
        parts += [text[reached : replacement.start], show(replacement)]
        reached = replacement.end
    return "".join([*parts, text[reached:]])


def compose(tokenizer: Any, line: Line) -> Rewritten:
    """Replacements in the line's own characters. Tokens that share a character are shown as one."""
    new, special = token_texts(tokenizer, line.after), set(tokenizer.all_special_ids)
    replaced: list[Replacement] = []
    for group in _groups(line.spans):
        chosen = [at for at in group if line.is_chosen[at]]
        if not chosen:
            continue
        start, end = line.spans[group[0]][0], max(line.spans[at][1] for at in group)
        before = after = line.text[start:end]
        is_changed = any(line.after[at] != line.ids[at] for at in chosen)
        if is_changed:
            touches = replaced and replaced[-1].end == start
            preceding = replaced[-1].after[-1:] if touches else line.text[max(0, start - 1) : start]
            was, now = (one.starts_word and one.text[:1].isalnum() for one in (line.tokens[group[0]], new[group[0]]))
            after = " " * (now and not was and preceding.isalnum()) + _write(tokenizer, line, group, new, special)
        probability = max(line.probabilities[at] for at in chosen)
        scored = None if math.isnan(probability) else probability
        replaced.append(Replacement(start, end, before, after, scored, is_changed))
    scores = [
        (token, probability, was != now)
        for token, probability, was, now in zip(new, line.probabilities, line.ids, line.after, strict=True)
        if now not in special and not math.isnan(probability)
    ]
    return Rewritten(line.text, replaced, line.is_filled, scores)


def _groups(spans: list[tuple[int, int]]) -> list[list[int]]:
    """Positions of tokens, those together that share a character, as the two halves of a ligature do."""
    groups: list[list[int]] = []
    for position, (start, _) in enumerate(spans):
        if not groups or start >= max(spans[at][1] for at in groups[-1]):
            groups.append([])
        groups[-1].append(position)
    return groups


def _write(tokenizer: Any, line: Line, group: list[int], new: list[TokenText], special: set[int]) -> str:
    """The text of a group's tokens: an unknown one keeps the user's, bytes of a character are decoded together."""
    ids = [line.after[at] for at in group]
    if special.isdisjoint(ids) and any(_BYTES.search(new[at].text) for at in group):
        decoded = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        return " ".join(decoded.removeprefix(" ").splitlines())
    texts = ["" if new[at].text in WORD_MARKS else " ".join(new[at].text.splitlines()) for at in group]
    kept = [line.text[slice(*line.spans[at])] for at in group]
    return "".join(own if token in special else text for token, own, text in zip(ids, kept, texts, strict=True))
