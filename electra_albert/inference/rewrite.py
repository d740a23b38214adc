"""Replacement of tokens by samples of the generator. B batch, L length, M masked, D hidden."""

import math
import re
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from electra_albert.config.checks import require
from electra_albert.contracts import DataError
from electra_albert.inference import engine
from electra_albert.inference.engine import WORD_MARKS, Engine, TokenSequence, printable, shown
from electra_albert.model.electra import Generator
from electra_albert.objectives.masking import choose_targets, maskable, sample
from electra_albert.tokenization.token_texts import TokenText, token_texts
from electra_albert.tokenization.tokenizer import special_ids

REPLACEMENT_CHARACTER = "\ufffd"
MASKS_AT_ONCE = 512  # limits the memory of logits [M, V]
LINES_AT_ONCE = 256  # read together, to batch sequences of similar length
# A token that is part of a character.
_BYTES = re.compile(f"{REPLACEMENT_CHARACTER}|<0x[0-9A-F]{{2}}>")
_LIMITS = (0.3, 0.6)  # of the probability of a replacement, between these colours
_COLOURS = ("\x1b[32m", "\x1b[33m", "\x1b[31m")  # green, yellow, red
_BOLD = "\x1b[1m"
_RESET = "\x1b[0m"


@dataclass(frozen=True)
class Draw:
    """Sampling options: share of tokens to mask, sampling temperature and seed.

    Raises UsageError if one is out of range.
    """

    mask_rate: float
    temperature: float
    seed: int

    def __post_init__(self) -> None:
        require(
            0 < self.mask_rate <= 1, f"mask_rate={self.mask_rate} must be above 0 and at most 1"
        )
        is_finite = 0 < self.temperature < math.inf
        require(is_finite, f"temperature={self.temperature} must be a number above 0")
        require(hasattr(self.seed, "__index__"), f"seed={self.seed} must be a whole number")


class Replacement(NamedTuple):
    """A masked token: original[start:end] is `before`, the new text is `after`."""

    start: int
    end: int
    before: str
    after: str
    # That the new token was replaced, by the discriminator; None without one.
    probability: float | None
    is_changed: bool  # False if the generator sampled the original token


class Rewritten(NamedTuple):
    """A rewritten text with its replacements in order."""

    original: str
    replaced: list[Replacement]
    is_filled: bool  # the text contained [MASK]; each got the best prediction
    # Of the new text: token, P(it was replaced), whether it is new; [] without a discriminator.
    scores: list[tuple[TokenText, float, bool]]

    @property
    def sequence(self) -> str:
        """The new text."""
        return splice(self.original, self.replaced, lambda replacement: replacement.after)


class Line:
    """A line of text with its tokens before and after rewriting."""

    def __init__(self, tokenizer: Any, text: str, number: int = 0) -> None:
        self.number = number
        self.text = text.replace(engine.MASK, tokenizer.mask_token)
        # Blank lines have no tokens, although some tokenizers have tokens for spaces.
        content = self.text if self.text.strip() else ""
        encoding = tokenizer.backend_tokenizer.encode(content, add_special_tokens=False)
        self.ids: list[int] = encoding.ids
        self.tokens = token_texts(tokenizer, self.ids)
        self.spans = engine.spans_of(encoding, self.tokens, self.text)  # characters of each token
        self.is_filled = tokenizer.mask_token_id in self.ids
        # Unknown parts of one character, which has no text of its own for each, are not replaced,
        # nor is the ▁ before them.
        self.fixed: set[int] = set()
        for group in _groups(self.spans):
            ids = [self.ids[at] for at in group]
            if len(group) > 1 and tokenizer.unk_token_id in ids:
                self.fixed.update(group)
                before = group[0] - 1
                start = self.spans[group[0]][0]
                if self.spans[before] == (start, start):
                    self.fixed.add(before)
        self.after = list(self.ids)
        self.is_chosen = [False] * len(self.ids)
        self.probabilities: dict[int, float] = {}  # of the scored tokens, by position


_Cut = tuple[Line, range]  # positions of the tokens of a line in one sequence


def rewrite_lines(
    model: Engine, lines: Iterable[str], draw: Draw
) -> Iterator[tuple[str, Rewritten]]:
    """Rewrite lines in order; yields the new line, with its line ending, and the Rewritten."""
    numbered = enumerate(lines, 1)
    for block in iter(lambda: list(islice(numbered, LINES_AT_ONCE)), []):
        texts = [(number, line.rstrip("\r\n")) for number, line in block]
        results = rewrite(model, texts, draw)
        for (_, line), (_, text), result in zip(block, texts, results, strict=True):
            ending = line.removeprefix(text)
            yield result.sequence + ending, result


def rewrite(model: Engine, numbered: Sequence[tuple[int, str]], draw: Draw) -> list[Rewritten]:
    """Rewrite lines; their numbers key the samples.

    Raises DataError for a line with [MASK] that is too long. Others are cut into sequences.
    """
    tokenizer = model.tokenizer
    models = (model.masked_token_model("rewrite"), model.discriminator)
    longest = min(part.config.max_position_embeddings for part in models if part)
    lines = [Line(tokenizer, text, number) for number, text in numbered]
    cuts: list[_Cut] = []
    for line in lines:
        length = len(line.ids) + 2
        if line.is_filled and length > longest:
            problem = engine.too_long(length, longest)
            raise DataError(f"line {line.number}: {engine.quote(line.text, 0)} {problem}")
        cuts += _cut(line, longest - 2)
    _redraw(model, cuts, draw)
    if model.discriminator is not None:
        scored = [(line, _scored(tokenizer, line, positions)) for line, positions in cuts]
        sequences = [_sequence(tokenizer, line.after, positions) for line, positions in scored]
        all_logits = model.detect(sequences)
        for (line, positions), logits in zip(scored, all_logits, strict=True):
            probabilities = logits[1:-1].sigmoid().tolist()
            line.probabilities |= zip(positions, probabilities, strict=True)
    return [compose(tokenizer, line) for line in lines]


def _scored(tokenizer: Any, line: Line, positions: range) -> list[int]:
    """Positions of the tokens to score.

    These are all but the word mark that a tokenizer adds after a mask without a space: "[MASK]."
    has the tokens [MASK], ▁ and a full stop.
    """
    mask_id = tokenizer.mask_token_id
    scored = []
    for at in positions:
        end = line.spans[at - 1][1]
        is_joined = not line.text[end : end + 1].isspace()
        follows_mask = at > 0 and line.ids[at - 1] == mask_id
        is_mark = line.tokens[at].text in WORD_MARKS
        if not (is_mark and follows_mask and is_joined):
            scored.append(at)
    return scored


def _cut(line: Line, room: int) -> Iterator[_Cut]:
    """Split a line into sequences of at most `room` tokens, before a word if possible."""
    count = len(line.ids)
    first = 0
    while first < count:
        last = min(first + room, count)
        end = last
        while first < end < count and not line.tokens[end].starts_word:
            end -= 1
        if end == first:
            end = last
        yield line, range(first, end)
        first = end


def _sequence(tokenizer: Any, ids: list[int], positions: Sequence[int]) -> TokenSequence:
    """Input of a model: the tokens at these positions, with [CLS] and [SEP]."""
    chosen = [ids[at] for at in positions]
    chosen = [tokenizer.cls_token_id, *chosen, tokenizer.sep_token_id]
    return TokenSequence(chosen, [0] * len(chosen))


@torch.no_grad()
def _redraw(model: Engine, cuts: Sequence[_Cut], draw: Draw) -> None:
    """Mask tokens as in pretraining, or where the user did, and sample new ones."""
    tokenizer = model.tokenizer
    generator = model.masked_token_model("rewrite")
    special = special_ids(tokenizer)
    sequences = [_sequence(tokenizer, line.ids, positions) for line, positions in cuts]
    for (ids, is_real, types), indices in model.batches(sequences):
        batch = [cuts[index] for index in indices]
        keys = [(line.number << 32) + at.start for line, at in batch]
        example_id = torch.tensor(keys, device=ids.device)  # [B]
        filled = [line.is_filled for line, _ in batch]
        is_filled = torch.tensor(filled, device=ids.device)  # [B]
        is_maskable = maskable(ids, is_real, special)
        for row, (line, at) in enumerate(batch):
            fixed = line.fixed.intersection(at)
            is_maskable[row, [position - at.start + 1 for position in fixed]] = False
        targets = choose_targets(ids, is_maskable, draw.mask_rate, draw.seed, example_id)
        is_chosen = torch.zeros_like(is_real)  # [B, L]
        is_chosen.scatter_(1, targets.positions, targets.weight > 0)
        is_chosen = torch.where(is_filled[:, None], ids == special.mask, is_chosen)
        masked_ids = ids.masked_fill(is_chosen, special.mask)
        masked = generator(masked_ids, is_real, types)[is_chosen]  # [M, D]
        for logits, cells in masked_logits(generator, masked, is_chosen.nonzero()):
            row, position = cells.T  # each [M]
            # Differs from pretraining, which may sample special tokens.
            logits[:, tokenizer.all_special_ids] = -math.inf
            drawn = sample(logits, draw.temperature, draw.seed, example_id[row], position)
            best = logits.argmax(-1)
            ids[row, position] = torch.where(is_filled[row], best, drawn)
        rows = zip(batch, ids.tolist(), is_chosen.tolist(), strict=True)
        for (line, at), after, is_new in rows:
            inside = slice(1, 1 + len(at))  # without [CLS] and padding
            line.after[at.start : at.stop] = after[inside]
            line.is_chosen[at.start : at.stop] = is_new[inside]


def masked_logits(
    generator: Generator, hidden_states: Tensor, labels: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """MLM logits, float32 [M, V], for at most MASKS_AT_ONCE of the hidden states [M, D] at a time.

    Each with the same part of `labels` [M, ...].
    """
    state_parts = torch.split(hidden_states, MASKS_AT_ONCE)
    label_parts = torch.split(labels, MASKS_AT_ONCE)
    for states, targets in zip(state_parts, label_parts, strict=True):
        yield generator.logits(states).float(), targets


def splice(text: str, replaced: Iterable[Replacement], show: Callable[[Replacement], str]) -> str:
    """The text with each replacement's span replaced by `show` of it.

    Replacements are in order, without overlap.
    """
    spliced = ""
    reached = 0
    for replacement in replaced:
        spliced += text[reached : replacement.start] + show(replacement)
        reached = replacement.end
    return spliced + text[reached:]


def compose(tokenizer: Any, line: Line) -> Rewritten:
    """Map the new tokens to replacements of characters.

    Tokens that share a character become one replacement. Without a space before it, a token that
    starts a word gets one: the line "owl, left" with , replaced by ▁lamp becomes "owl lamp left".
    """
    new = token_texts(tokenizer, line.after)
    special = set(tokenizer.all_special_ids)
    replaced: list[Replacement] = []
    for group in _groups(line.spans):
        chosen = [at for at in group if line.is_chosen[at]]
        if not chosen:
            continue
        first = group[0]
        start = line.spans[first][0]
        end = max(line.spans[at][1] for at in group)
        before = after = line.text[start:end]
        is_changed = any(line.after[at] != line.ids[at] for at in chosen)
        if is_changed:
            after = _write(tokenizer, line, group, new, special)
            preceding = line.text[:start][-1:]
            if replaced and replaced[-1].end == start:
                preceding = replaced[-1].after[-1:]
            starts_word = _is_word(new[first]) and not _is_word(line.tokens[first])
            if starts_word and preceding.isalnum():
                after = f" {after}"
        score = None
        if line.probabilities:
            score = max(line.probabilities[at] for at in chosen)
        replaced.append(Replacement(start, end, before, after, score, is_changed))
    scores = []
    for at, probability in line.probabilities.items():
        token = line.after[at]
        if token not in special:
            is_new = token != line.ids[at]
            scores.append((new[at], probability, is_new))
    return Rewritten(line.text, replaced, line.is_filled, scores)


def _is_word(token: TokenText) -> bool:
    return token.starts_word and token.text[:1].isalnum()


def _groups(spans: list[tuple[int, int]]) -> list[list[int]]:
    """Group the positions of tokens that share a character, such as a ligature of several tokens.

    [(0, 3), (4, 5), (4, 6), (6, 7)] gives [[0], [1, 2], [3]].
    """
    groups: list[list[int]] = []
    reached = 0
    for position, (start, end) in enumerate(spans):
        if start >= reached:
            groups.append([])
        groups[-1].append(position)
        reached = max(reached, end)
    return groups


def _write(
    tokenizer: Any, line: Line, group: list[int], new: list[TokenText], special: set[int]
) -> str:
    """Text of a group's new tokens.

    Special and unknown tokens keep the original text, bytes are decoded together.
    """
    ids = [line.after[at] for at in group]
    has_bytes = any(_BYTES.search(new[at].text) for at in group)
    if has_bytes and special.isdisjoint(ids):
        decoded = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        return " ".join(decoded.removeprefix(" ").splitlines())
    text = ""
    for at in group:
        if line.after[at] in special:
            text += line.text[slice(*line.spans[at])]
        elif new[at].text not in WORD_MARKS:
            text += " ".join(new[at].text.splitlines())
    return text


def format_predictions(text: str, answer: list[list[dict[str, Any]]], *, colours: bool) -> str:
    """Format the text with a table of predictions, one column per mask."""
    width = max(len(_cell(choice)) for choice in chain(*answer))
    title = printable(text)
    if colours:
        title = f"{_BOLD}{title}{_RESET}"
    lines = [title]
    for choices in zip(*answer, strict=True):
        cells = [_cell(choice).ljust(width) for choice in choices]
        lines.append("    ".join(["", *cells]).rstrip())
    return "\n".join(lines)


def _cell(choice: dict[str, Any]) -> str:
    return f"{choice['score']:6.1%}  {shown(choice['token_str'])}"


def format_rewritten(rewritten: Rewritten, *, colours: bool) -> str:
    """Format a text before and after rewriting, and each masked token with its score."""

    def mark(replacement: Replacement) -> str:
        before = printable(replacement.before)
        after = printable(replacement.after)
        if not replacement.is_changed:
            return before
        if colours:
            return f"{_BOLD}{after}{_RESET}"
        return f"[{before}]->[{after}]"

    before = printable(rewritten.original)  # character for character, so that positions stay valid
    if not rewritten.replaced:
        return f"{before}\n    unchanged: no token can be masked"
    lines = [before, f"    rewritten: {splice(before, rewritten.replaced, mark)}"]
    for replacement in rewritten.replaced:
        old = printable(replacement.before.strip()) or "(empty)"
        new = printable(replacement.after.strip()) or "(empty)"
        change = f"{old} (unchanged)"
        if replacement.is_changed:
            change = f"{old} -> {new}"
        probability = replacement.probability
        if probability is not None:
            score = _colour(f"  P(replaced) {probability:.0%}", probability, colours)
            change = f"{change:24}{score}"
        lines.append(f"    {change}".rstrip())
    return "\n".join(lines)


def format_scored(scores: Iterable[tuple[TokenText, float]], *, colours: bool) -> str:
    """Format each token with its probability of being a replacement."""
    text = "    P(replaced):"
    for token, probability in scores:
        if token.starts_word:
            text += " "
        text += _colour(f"{shown(token.text)}({probability:.0%})", probability, colours)
    return text


def _colour(text: str, probability: float, colours: bool) -> str:
    if not colours:
        return text
    colour = _COLOURS[bisect(_LIMITS, probability)]
    return f"{colour}{text}{_RESET}"
