"""Replacement of tokens by samples of the generator. Dimensions: B batch, L length, M masked, V vocab, D hidden."""

import math
import re
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from electra_albert.contracts import DataError
from electra_albert.corpus.token_texts import TokenText, token_texts
from electra_albert.corpus.tokenizer import special_ids
from electra_albert.inference import engine
from electra_albert.inference.engine import WORD_MARKS, Engine, TokenSequence, printable, shown
from electra_albert.model.electra import Generator
from electra_albert.model_config import require
from electra_albert.objectives.masking import choose_targets, maskable, sample

REPLACEMENT_CHARACTER = "\ufffd"
MASKS_AT_ONCE = 512  # limits the memory of logits [M, V]
LINES_AT_ONCE = 256  # read together, to batch sequences of similar length
_BYTES = re.compile(f"{REPLACEMENT_CHARACTER}|<0x[0-9A-F]{{2}}>")  # a token that is part of a character
_LIMITS, _COLOURS = (0.3, 0.6), ("\x1b[32m", "\x1b[33m", "\x1b[31m")  # probability of a replacement: green to red
_BOLD, _RESET = "\x1b[1m", "\x1b[0m"


@dataclass(frozen=True)
class Draw:
    """Sampling options: share of tokens to mask, sampling temperature and seed. Raises UsageError if out of range."""

    mask_rate: float = 0.15
    temperature: float = 1.0
    seed: int = 42

    def __post_init__(self) -> None:
        require(0 < self.mask_rate <= 1, f"mask_rate={self.mask_rate} must be above 0 and at most 1")
        require(0 < self.temperature < math.inf, f"temperature={self.temperature} must be a number above 0")
        require(hasattr(self.seed, "__index__"), f"seed={self.seed} must be a whole number")


class Replacement(NamedTuple):
    """A masked token: original[start:end] is `before`, the new text is `after`."""

    start: int
    end: int
    before: str
    after: str
    probability: float | None  # that the new token was replaced, by the discriminator; None without one
    is_changed: bool  # False if the generator sampled the original token


class Rewritten(NamedTuple):
    """A rewritten text: replacements in order, and for each new token its probability of having been replaced."""

    original: str
    replaced: list[Replacement]
    is_filled: bool  # the text contained [MASK]; each got the best prediction
    scores: list[tuple[TokenText, float, bool]]  # token, probability, whether it is new; [] without a discriminator

    @property
    def sequence(self) -> str:
        """The new text."""
        return splice(self.original, self.replaced, lambda replacement: replacement.after)


class Line:
    """A line of text with its tokens before and after rewriting."""

    def __init__(self, tokenizer: Any, text: str, number: int = 0) -> None:
        self.text, self.number = text.replace(engine.MASK, tokenizer.mask_token), number
        # Blank lines have no tokens, although some tokenizers have tokens for spaces.
        content = self.text if self.text.strip() else ""
        encoding = tokenizer.backend_tokenizer.encode(content, add_special_tokens=False)
        self.ids: list[int] = encoding.ids
        self.tokens = token_texts(tokenizer, self.ids)
        self.spans = engine.spans_of(encoding, self.tokens, self.text)  # characters of each token
        self.is_filled = tokenizer.mask_token_id in self.ids
        # Unknown parts of one character, which has no text of its own for each, are not replaced.
        unknown = tokenizer.unk_token_id
        fixed: set[int] = set()
        for group in _groups(self.spans):
            if len(group) > 1 and any(self.ids[at] == unknown for at in group):
                fixed.update(group)
        self.is_fixed = [at in fixed for at in range(len(self.ids))]
        self.after = list(self.ids)
        self.is_chosen = [False] * len(self.ids)
        self.probabilities = [math.nan] * len(self.ids)  # NaN: not scored


def rewrite_lines(model: Engine, lines: Iterable[str], draw: Draw) -> Iterator[tuple[str, Rewritten]]:
    """Rewrite lines in order; yields the new line, with its line ending, and the Rewritten."""
    numbered = enumerate(lines, 1)
    while block := list(islice(numbered, LINES_AT_ONCE)):
        texts = [(number, line.rstrip("\r\n")) for number, line in block]
        for (_, line), (_, text), result in zip(block, texts, rewrite(model, texts, draw), strict=True):
            yield result.sequence + line[len(text) :], result


def rewrite(model: Engine, numbered: Sequence[tuple[int, str]], draw: Draw) -> list[Rewritten]:
    """Rewrite lines; their numbers key the samples. Raises DataError for a line with [MASK] that is too long."""
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
    """Whether a token is only a word mark that the tokenizer adds after a mask without a space, as in "[MASK]."."""
    is_after = position > 0 and line.ids[position - 1] == tokenizer.mask_token_id
    is_mark = is_after and line.tokens[position].text in WORD_MARKS
    return is_mark and not line.text[line.spans[position - 1][1] :][:1].isspace()


def _cut(line: Line, room: int) -> Iterator[tuple[Line, range]]:
    """Split a line into sequences of at most `room` tokens, before a word if possible."""
    cut, count = 0, len(line.ids)
    while (first := cut) < count:
        ends = range(min(first + room, count), first, -1)
        cut = next((at for at in ends if at == count or line.tokens[at].starts_word), ends[0])
        yield line, range(first, cut)


def _sequence(tokenizer: Any, ids: list[int]) -> TokenSequence:
    return TokenSequence([tokenizer.cls_token_id, *ids, tokenizer.sep_token_id], [0] * (len(ids) + 2))


@torch.no_grad()
def _redraw(model: Engine, cuts: Sequence[tuple[Line, range]], draw: Draw) -> None:
    """Mask tokens of each sequence as in pretraining, or take the user's masks, and sample new tokens for them."""
    tokenizer, generator = model.tokenizer, model.masked_token_model("rewrite")
    special = special_ids(tokenizer)
    sequences = [_sequence(tokenizer, line.ids[at.start : at.stop]) for line, at in cuts]
    for (ids, is_real, types), chosen in model.batches(sequences):
        own = [cuts[index] for index in chosen]
        example_id = torch.tensor([(line.number << 32) + at.start for line, at in own], device=ids.device)  # [B]
        is_filled = torch.tensor([line.is_filled for line, _ in own], device=ids.device)  # [B]
        is_maskable = maskable(ids, is_real, special)
        for row, (line, at) in enumerate(own):
            is_fixed = torch.tensor(line.is_fixed[at.start : at.stop], device=ids.device)
            is_maskable[row, 1 : 1 + len(at)] &= ~is_fixed
        targets = choose_targets(ids, is_maskable, draw.mask_rate, draw.seed, example_id)
        is_chosen = torch.zeros_like(is_real).scatter(1, targets.positions, targets.weight > 0)  # [B, L]
        is_chosen = torch.where(is_filled[:, None], ids == special.mask, is_chosen)
        masked = generator(ids.masked_fill(is_chosen, special.mask), is_real, types)[is_chosen]  # [M, D]
        positions = (part.T for part in torch.split(is_chosen.nonzero(), MASKS_AT_ONCE))
        for logits, (example, position) in zip(masked_logits(generator, masked), positions, strict=True):
            logits[:, tokenizer.all_special_ids] = -math.inf  # differs from pretraining, which may sample them
            drawn = sample(logits, draw.temperature, draw.seed, example_id[example], position)
            ids[example, position] = torch.where(is_filled[example], logits.argmax(-1), drawn)
        for (line, at), after, is_new in zip(own, ids.tolist(), is_chosen.tolist(), strict=True):
            line.after[at.start : at.stop] = after[1 : 1 + len(at)]  # without [CLS], [SEP] and padding
            line.is_chosen[at.start : at.stop] = is_new[1 : 1 + len(at)]


def masked_logits(generator: Generator, hidden_states: Tensor) -> Iterator[Tensor]:
    """MLM logits, float32 [M, V], for at most MASKS_AT_ONCE of the hidden states [M, D] at a time."""
    return (generator.logits(part).float() for part in torch.split(hidden_states, MASKS_AT_ONCE))


def splice(text: str, replaced: Iterable[Replacement], show: Callable[[Replacement], str]) -> str:
    """The text with each replacement's span replaced by `show` of it; replacements are in order, without overlap."""
    parts, reached = [], 0
    for replacement in replaced:
        parts += [text[reached : replacement.start], show(replacement)]
        reached = replacement.end
    return "".join([*parts, text[reached:]])


def compose(tokenizer: Any, line: Line) -> Rewritten:
    """Map the new tokens to replacements of characters. Tokens that share a character become one replacement."""
    new, special = token_texts(tokenizer, line.after), set(tokenizer.all_special_ids)
    replaced: list[Replacement] = []
    for group in _groups(line.spans):
        if not (chosen := [at for at in group if line.is_chosen[at]]):
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
    """Group the positions of tokens that share a character, such as a ligature that is several tokens."""
    groups: list[list[int]] = []
    for position, (start, _) in enumerate(spans):
        if not groups or start >= max(spans[at][1] for at in groups[-1]):
            groups.append([])
        groups[-1].append(position)
    return groups


def _write(tokenizer: Any, line: Line, group: list[int], new: list[TokenText], special: set[int]) -> str:
    """Text of a group's tokens; special and unknown tokens keep the original text, bytes are decoded together."""
    ids = [line.after[at] for at in group]
    if special.isdisjoint(ids) and any(_BYTES.search(new[at].text) for at in group):
        decoded = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        return " ".join(decoded.removeprefix(" ").splitlines())
    texts = ["" if new[at].text in WORD_MARKS else " ".join(new[at].text.splitlines()) for at in group]
    kept = [line.text[slice(*line.spans[at])] for at in group]
    return "".join(own if token in special else text for token, own, text in zip(ids, kept, texts, strict=True))


def format_predictions(text: str, answer: list[list[dict[str, Any]]], *, colours: bool) -> str:
    """Format the text with a table of predictions, one column per mask."""
    columns = [[f"{p['score']:6.1%}  {shown(p['token_str'])}" for p in predictions] for predictions in answer]
    width = max(len(cell) for column in columns for cell in column)
    rows = ("    " + "    ".join(cell.ljust(width) for cell in row).rstrip() for row in zip(*columns, strict=True))
    return "\n".join([f"{_BOLD}{printable(text)}{_RESET}" if colours else printable(text), *rows])


def format_rewritten(rewritten: Rewritten, *, colours: bool) -> str:
    """Format a text before and after rewriting, and each masked token with its replacement and score."""

    def mark(replacement: Replacement) -> str:
        before, after = printable(replacement.before), printable(replacement.after)
        if not replacement.is_changed:
            return before
        return f"{_BOLD}{after}{_RESET}" if colours else f"[{before}]->[{after}]"

    before = printable(rewritten.original)  # character for character, so that positions stay valid
    if not rewritten.replaced:
        return f"{before}\n    unchanged: no token can be masked"
    lines = [before, f"    rewritten: {splice(before, rewritten.replaced, mark)}"]
    for _, _, was, now, probability, is_changed in rewritten.replaced:
        score = "" if probability is None else _colour(f"  P(replaced) {probability:.0%}", probability, colours)
        old, new = (printable(text.strip()) or "(empty)" for text in (was, now))
        lines.append(f"    {f'{old} -> {new}' if is_changed else f'{old} (unchanged)':24}{score}".rstrip())
    return "\n".join(lines)


def format_scored(scores: Iterable[tuple[TokenText, float]], *, colours: bool) -> str:
    """Format each token with its probability of being a replacement."""
    text = "    P(replaced):"
    for token, probability in scores:
        text += " " * token.starts_word + _colour(f"{shown(token.text)}({probability:.0%})", probability, colours)
    return text


def _colour(text: str, probability: float, colours: bool) -> str:
    return f"{_COLOURS[bisect(_LIMITS, probability)]}{text}{_RESET}" if colours else text
