"""Fill in masks with a trained generator, or mask and rewrite text with it, and see what the discriminator thinks.

python LM_DEMO.py                                       newest run or shipped model, built-in sentences
python LM_DEMO.py --gen weights.pt --input sentences.txt --top_k 5
python LM_DEMO.py --input text.txt --output rewritten.txt
"""

from __future__ import annotations

import json
import math
import os
import sys
from bisect import bisect
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from electra_albert.apps.command_line import make_parser, parse
from electra_albert.apps.demo.files import MASK, PIPE, check_output, read_sentences, rewrite_file, use_utf8
from electra_albert.apps.demo.models import built_in_sentences, default_path, load_rewriter
from electra_albert.contracts import UsageError

if TYPE_CHECKING:
    from jsonargparse import Namespace

    from electra_albert.inference.fill_mask import Filled, Proposal, Verdict
    from electra_albert.inference.rewrite import Rewriter
    from electra_albert.inference.splice import Replacement, Rewritten

_DESCRIPTION = f"""Fill in the {MASK}s of sentences with a pretrained generator; a sentence without any is masked
here, rewritten by a draw from the generator, and shown before and after with the discriminator's opinion of each
masked word, [before]->[after] where there are no colours."""
_OUTPUT_HELP = f"A file for the rewritten text, line for line, {MASK}s filled by the best guess; {PIPE} for stdout."
_JSON_HELP = f"""Print one JSON array, one element a line of text. For a line with {MASK}s: as the fill-mask pipeline
gives it. For any other: {{"sequence": after, "original": before, "replaced": [{{"start", "end", "before", "after",
"probability", "is_changed"}}, ...]}}; start and end are characters of the original, the probability of having been
replaced is the discriminator's, null without one."""
_EXAMPLES = """examples:
  python LM_DEMO.py                                         newest run or shipped model, built-in sentences
  python LM_DEMO.py sentences.txt --gen runs/mine --top_k 3 the same as --input sentences.txt
  python LM_DEMO.py --input text.txt --output rewritten.txt"""
_LIMITS, _COLOURS = (0.3, 0.6), ("\x1b[32m", "\x1b[33m", "\x1b[31m")  # probability of a replacement: green to red
_BOLD, _RESET = "\x1b[1m", "\x1b[0m"


def main(argv: Sequence[str]) -> int:
    """Entry point of LM_DEMO.py; returns the exit code."""
    options = _parse(argv)
    if options.json:
        use_utf8(sys.stdout)
    sentences = read_sentences(options.input) if options.input and not options.output else []
    path = Path(options.gen) if options.gen else default_path()
    rewriter = load_rewriter(options, path)
    if rewriter.discriminator is None:
        print("notice: there is no discriminator beside this generator, so nothing is judged", file=sys.stderr)
    if options.output:
        rewrite_file(rewriter, options.input, options.output)
        return 0
    if not options.input:
        sentences = list(enumerate(built_in_sentences(path), 1))
    answers = _answer(rewriter, sentences, options.top_k)
    if options.json:
        print(json.dumps([_as_json(answer) for answer in answers], ensure_ascii=False))
        return 0
    colours = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    for (_, text), answer in zip(sentences, answers, strict=True):
        _print_answer(rewriter, text, answer, colours=colours)
        print()
    return 0


def _parse(argv: Sequence[str]) -> Namespace:
    parser = make_parser("LM_DEMO.py", " ".join(_DESCRIPTION.split()), epilog=_EXAMPLES)
    parser.add_argument(
        "--gen",
        type=str | None,
        default=None,
        help="A run folder, a model folder, a .safetensors or .pt file (safetensors is the safer of the two); "
        "by default the newest run, else the model that comes with the checkout.",
    )
    parser.add_argument("--disc", type=str | None, default=None, help="The discriminator; by default beside --gen.")
    parser.add_argument("--config", type=str | None, default=None, help="config.json of a bare weights file.")
    parser.add_argument("--tokenizer", type=str | None, default=None, help="Tokenizer folder of a bare weights file.")
    parser.add_argument("--input", type=str | None, default=None, help=f"Text, one sentence a line; {PIPE} for stdin.")
    parser.add_argument("--output", type=str | None, default=None, help=_OUTPUT_HELP)
    parser.add_argument("--top_k", type=int, default=5, help=f"Guesses for each {MASK}.")
    parser.add_argument("--mask_rate", type=float, default=0.15, help=f"Share of tokens masked where no {MASK} is.")
    parser.add_argument("--temperature", type=float, default=1.0, help="Of the draw; higher is more varied.")
    parser.add_argument("--seed", type=int, default=42, help="Keys, with the line's number, the masks and the draws.")
    parser.add_argument("--json", action="store_true", help=" ".join(_JSON_HELP.split()))
    options = parse(parser, argv, of_file="input")
    _check(options)
    return options


def _check(options: Namespace) -> None:
    if options.top_k < 1:
        raise UsageError(f"top_k={options.top_k} must be at least 1")
    if not 0 < options.mask_rate <= 1:
        raise UsageError(f"mask_rate={options.mask_rate} must be above 0 and at most 1")
    if not 0 < options.temperature < math.inf:
        raise UsageError(f"temperature={options.temperature} must be a number above 0")
    if options.output:
        if options.json:
            raise UsageError("--output writes text and --json prints JSON; give one of the two")
        if not options.input:
            raise UsageError(f"--output needs --input FILE, or --input {PIPE} for stdin")
        check_output(options.input, options.output)


def _answer(rewriter: Rewriter, sentences: list[tuple[int, str]], top_k: int) -> list[Filled | Rewritten]:
    """The guesses of each sentence with masks and the rewriting of each without."""
    from electra_albert.inference.fill_mask import encode, fill, has_mask, naming_line
    from electra_albert.inference.rewrite import rewrite

    tokenizer, filled = rewriter.tokenizer, {}
    for number, text in sentences:
        if has_mask(text, tokenizer):
            with naming_line(number):
                ids = encode(text, tokenizer, rewriter.longest)
            filled[number] = fill(rewriter.generator, tokenizer, text, ids, top_k)
    rewritten = iter(rewrite(rewriter, [line for line in sentences if line[0] not in filled]))
    return [filled[number] if number in filled else next(rewritten) for number, _ in sentences]


def _as_json(answer: Filled | Rewritten) -> Any:
    from electra_albert.inference.fill_mask import Filled

    if isinstance(answer, Filled):
        return answer.proposals[0] if len(answer.proposals) == 1 else answer.proposals
    replaced = [replacement._asdict() for replacement in answer.replaced]
    return {"sequence": answer.sequence, "original": answer.original, "replaced": replaced}


def _print_answer(rewriter: Rewriter, text: str, answer: Filled | Rewritten, *, colours: bool) -> None:
    """A rewriting, or guesses with the discriminator's verdict on the text whose masks are filled by the best."""
    from electra_albert.inference.fill_mask import Filled, judge

    if not isinstance(answer, Filled):
        print_rewritten(answer, colours=colours)
        return
    print_guesses(text, answer.proposals, colours=colours)
    if rewriter.discriminator is not None:
        print_verdicts(judge(rewriter.discriminator, rewriter.tokenizer, answer.ids), colours=colours)


def print_guesses(text: str, answer: list[list[Proposal]], *, colours: bool) -> None:
    """A small table of guesses, one column a mask."""
    from electra_albert.inference.fill_mask import printable, shown

    print(f"{_BOLD}{printable(text)}{_RESET}" if colours else printable(text))
    columns = [[f"{p['score']:6.1%}  {shown(p['token_str'])}" for p in proposals] for proposals in answer]
    width = max(len(cell) for column in columns for cell in column)
    for row in zip(*columns, strict=True):
        print("    " + "    ".join(cell.ljust(width) for cell in row).rstrip())


def print_rewritten(rewritten: Rewritten, *, colours: bool) -> None:
    """A text before and after, and each masked word: what it became, and whether the discriminator noticed."""
    from electra_albert.inference.fill_mask import printable
    from electra_albert.inference.splice import splice

    def mark(replacement: Replacement) -> str:
        before, after = printable(replacement.before), printable(replacement.after)
        if not replacement.is_changed:
            return before
        return f"{_BOLD}{after}{_RESET}" if colours else f"[{before}]->[{after}]"

    before = printable(rewritten.original)  # character for character, so that places stay
    print(before)
    if not rewritten.replaced:
        print("    holds no token that may be masked: left as it is")
        return
    print(f"    after: {splice(before, rewritten.replaced, mark)}")
    words = [_change(replacement) for replacement in rewritten.replaced]
    width = max(map(len, words))
    for word, replacement in zip(words, rewritten.replaced, strict=True):
        probability, outcome = replacement.probability, "changed" if replacement.is_changed else "kept"
        verdict = "" if probability is None else f"replaced? {probability:.0%}"
        if colours and probability is not None:
            verdict = _colour(verdict, probability)
        print(f"    {word:{width}}  {outcome:7}  {verdict}".rstrip())


def _change(replacement: Replacement) -> str:
    """What is shown of a masked word: a word's mark alone has no text, a piece within a word may bring a space."""
    from electra_albert.inference.fill_mask import printable

    before, after = (printable(text.strip()) or "(nothing)" for text in (replacement.before, replacement.after))
    return f"{before} -> {after}" if replacement.is_changed else before


def print_verdicts(verdicts: list[Verdict], *, colours: bool) -> None:
    """How likely each token is a replacement: coloured in a terminal, in per cent everywhere."""
    from electra_albert.inference.fill_mask import shown

    cells = []
    for piece, probability in verdicts:
        cell = f"{shown(piece.text)}({probability:.0%})"
        cells.append(" " * piece.starts_word + (_colour(cell, probability) if colours else cell))
    print("    replaced?" + "".join(cells))


def _colour(text: str, probability: float) -> str:
    return f"{_COLOURS[bisect(_LIMITS, probability)]}{text}{_RESET}"
