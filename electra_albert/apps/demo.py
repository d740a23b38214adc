"""Fill in masks with a trained generator, and see what the discriminator thinks of every token.

python LM_DEMO.py                                       newest run, built-in sentences
python LM_DEMO.py --gen weights.pt --input sentences.txt --top_k 5
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from electra_albert.apps.command_line import make_parser, parse
from electra_albert.contracts import DataError, UsageError

if TYPE_CHECKING:
    from jsonargparse import Namespace

    from electra_albert.apps.fill_mask import Proposal, Verdict
    from electra_albert.model.electra import Discriminator, Generator

RUNS = Path("runs")
SENTENCES = (
    "Return the number of [MASK] in the list.",
    "If the file does not [MASK], an error is raised.",
    "The value must be a [MASK] integer.",
    "This function returns a new [MASK] with the same [MASK].",
)
WORD_START = "▁"
_PLAIN_BELOW, _STRONG_FROM = 0.3, 0.6  # probability of a replacement: green, yellow, red
_GREEN, _YELLOW, _RED, _BOLD, _RESET = "\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[1m", "\x1b[0m"


class Models(NamedTuple):
    """What the demo asks."""

    generator: Generator
    discriminator: Discriminator | None
    tokenizer: Any


def main(argv: Sequence[str]) -> int:
    """Entry point of LM_DEMO.py; returns the exit code."""
    options = _parse(argv)
    sentences = _read_sentences(Path(options.input)) if options.input else list(SENTENCES)
    models = _load(options)
    from electra_albert.apps.fill_mask import encode, fill_masks, judge

    answers = [fill_masks(models.generator, models.tokenizer, text, options.top_k) for text in sentences]
    if options.json:
        print(json.dumps([answer[0] if len(answer) == 1 else answer for answer in answers], ensure_ascii=False))
        return 0
    colours = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    for text, answer in zip(sentences, answers, strict=True):
        print_guesses(text, answer, colours=colours)
        if models.discriminator is not None:
            filled = _fill_all(text, answer, models.tokenizer)
            row = encode(filled, models.tokenizer, models.discriminator.config.max_position_embeddings)
            print_verdicts(judge(models.discriminator, models.tokenizer, row), colours=colours)
        print()
    return 0


def _parse(argv: Sequence[str]) -> Namespace:
    parser = make_parser("LM_DEMO.py", "Fill in the [MASK]s of sentences with a pretrained generator.")
    parser.add_argument(
        "--gen",
        type=str | None,
        default=None,
        help="A run folder, a model folder, a .safetensors or .pt file (safetensors is the safer of the two); "
        "by default the newest run.",
    )
    parser.add_argument("--disc", type=str | None, default=None, help="The discriminator; by default beside --gen.")
    parser.add_argument("--config", type=str | None, default=None, help="config.json of a bare weights file.")
    parser.add_argument("--tokenizer", type=str | None, default=None, help="Tokenizer folder of a bare weights file.")
    parser.add_argument("--input", type=str | None, default=None, help="A text file, one sentence a line.")
    parser.add_argument("--top_k", type=int, default=5, help="Guesses for each [MASK].")
    parser.add_argument("--json", action="store_true", help="Print JSON in the form of the fill-mask pipeline.")
    options = parse(parser, argv)
    if options.top_k < 1:
        raise UsageError(f"top_k={options.top_k} must be at least 1")
    return options


def _load(options: Namespace) -> Models:
    from electra_albert.corpus.tokenizer import load_tokenizer
    from electra_albert.model.loading import load_discriminator, load_generator, locate

    path = Path(options.gen) if options.gen else newest_run(RUNS)
    config, folder = (Path(value) if value else None for value in (options.config, options.tokenizer))
    files = locate(path, "generator", config, folder)
    generator, tokenizer = load_generator(files), load_tokenizer(files.tokenizer)
    check_vocabulary(generator, tokenizer, files.tokenizer)
    folder_of_weights = files.weights.absolute().parent
    beside = Path(options.disc) if options.disc else folder_of_weights.parent / "discriminator"
    discriminator = None
    if options.disc or (folder_of_weights.name == "generator" and beside.is_dir()):
        discriminator = load_discriminator(locate(beside, "discriminator"))
        check_vocabulary(discriminator, tokenizer, files.tokenizer)
    return Models(generator, discriminator, tokenizer)


def check_vocabulary(model: Generator | Discriminator, tokenizer: Any, folder: Path) -> None:
    """CheckpointError where the tokenizer has more or fewer pieces than the model's table has rows."""
    from electra_albert.contracts import CheckpointError

    if len(tokenizer) != model.config.vocab_size:
        raise CheckpointError(
            f"the tokenizer in {folder} has {len(tokenizer)} pieces, the model {model.config.vocab_size}; "
            "name the tokenizer it was trained with by --tokenizer"
        )


def newest_run(runs: Path) -> Path:
    """The run whose generator was written last; UsageError, with what to type, where there is none."""
    exported = [path.parent.parent for path in runs.glob("*/generator/config.json")]
    if not exported:
        raise UsageError(f"{runs}/ holds no finished run; train one first: python Pretraining.py")
    return max(exported, key=lambda run: (run / "generator" / "config.json").stat().st_mtime_ns)


def _read_sentences(file: Path) -> list[str]:
    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError:
        raise DataError(f"{file} is not UTF-8 text; convert it first") from None
    except OSError as error:
        raise UsageError(f"cannot read {file} ({error.strerror}); name a text file, one sentence a line") from None
    sentences = [line.strip() for line in lines if line.strip()]
    if not sentences:
        raise DataError(f"{file} holds no sentence; write one a line, with [MASK] for a missing word")
    return sentences


def _fill_all(text: str, answer: list[list[Proposal]], tokenizer: Any) -> str:
    """The sentence with every mask filled by its first guess."""
    for proposals in answer:
        text = text.replace(tokenizer.mask_token, proposals[0]["token_str"], 1)
    return text


def print_guesses(text: str, answer: list[list[Proposal]], *, colours: bool) -> None:
    """A small table of guesses, one column a mask."""
    from electra_albert.apps.fill_mask import printable

    print(f"{_BOLD}{printable(text)}{_RESET}" if colours else printable(text))
    columns = [[f"{p['score']:6.1%}  {printable(p['token_str'])}" for p in proposals] for proposals in answer]
    width = max(len(cell) for column in columns for cell in column)
    for row in zip(*columns, strict=True):
        print("    " + "    ".join(cell.ljust(width) for cell in row).rstrip())


def print_verdicts(verdicts: list[Verdict], *, colours: bool) -> None:
    """How likely each token is a replacement: coloured in a terminal, in per cent everywhere."""
    cells = []
    for verdict in verdicts:
        word = verdict.piece.replace(WORD_START, "") or verdict.piece
        cell = f"{word}({verdict.probability:.0%})"
        if colours:
            cell = _colour(verdict.probability) + cell + _RESET
        cells.append((" " if verdict.piece.startswith(WORD_START) else "") + cell)
    print("    replaced?" + "".join(cells))


def _colour(probability: float) -> str:
    if probability < _PLAIN_BELOW:
        return _GREEN
    return _RED if probability >= _STRONG_FROM else _YELLOW
