"""Fill the [MASK]s of sentences; mask and rewrite sentences that have none."""

import json
import math
import os
import shutil
import stat
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from jsonargparse import Namespace

from electra_albert.apps import command_line, default_model
from electra_albert.config.checks import require
from electra_albert.contracts import CheckpointError, DataError, UsageError
from electra_albert.files import replacing, writing

if TYPE_CHECKING:
    from electra_albert.inference.model import InferenceModel
    from electra_albert.inference.rewrite import Draw

MASK = "[MASK]"
PIPE = "-"
LOST = "\ufffd"  # written for a sampled token that is only a part of a character
_LONGEST_LINE = 1 << 14  # characters to rewrite at once: lines have any length, memory is limited
_MOST_PRINTED = 1 << 22  # characters of all lines, which are in memory without --output
SENTENCES = (  # used without --input
    "Paris is the [MASK] of France.",
    "She opened the door and walked into the [MASK].",
    "The book was written in the nineteenth [MASK].",
    "He was born in [MASK] and died in [MASK].",
    "The [MASK] of the country is elected for four [MASK].",
    "The old man sat by the fire and told the children a story about the sea.",
    "The town was founded by settlers who came from the north and built a church near the river.",
)
_PATHS = {
    "gen": "Run, model folder or weights file; by default the newest run, else the shipped model.",
    "disc": "Discriminator; by default the one next to --gen.",
    "config": "config.json for a weights file.",
    "tokenizer": "Tokenizer folder for a weights file.",
    "input": f"Text file, one sentence per line; {PIPE} for stdin.",
    "output": f"File for rewritten lines, {MASK}s filled by the top prediction; {PIPE} for stdout.",
    "compare": "Second model, shown next to --gen on the page.",
}
_OPTIONS = {  # default and help
    "top_k": (5, f"Number of predictions for each {MASK}."),
    "mask_rate": (0.15, f"Fraction of tokens to mask in a sentence without {MASK}."),
    "temperature": (1.0, "Sampling temperature; higher gives more varied text."),
    "seed": (42, "Random seed for masking and sampling, combined with the line number."),
    "host": ("127.0.0.1", "Address of the page; 0.0.0.0 admits other machines."),
    "port": (7860, "Port of the page; 0 takes a free one."),
}
_NOT_ON_PAGE = "input output top_k mask_rate temperature seed json"
_ONLY_ON_PAGE = "host port compare"
_JSON_HELP = f"""Print a JSON array with one element per line of text: with {MASK} the output of the
fill-mask pipeline, else {{"sequence": after, "original": before, "replaced": [{{"start", "end",
"before", "after", "probability", "is_changed"}}, ...]}}; start and end in characters of the
original; probability null without a discriminator."""
_EXAMPLES = (
    ("", "newest run or shipped model, built-in sentences"),
    ("sentences.txt --gen runs/mine --top_k 3", "the same as --input sentences.txt"),
    ("--input text.txt --output rewritten.txt",),
    ("--serve --compare runs/other", "a page in the browser, with two models side by side"),
)
_NO_SENTENCE = f"--input {{}} contains no sentence; write one per line, with or without {MASK}"


def main(argv: Sequence[str]) -> int:
    """Entry point of `electra-albert demo`; returns the exit code."""
    options = _parse(argv)
    if options.serve:
        from electra_albert.apps.demo_page import listen, serve

        with listen(options.host, options.port) as listener:  # before the models are loaded
            models = [_load(options)]
            if options.compare:
                second = Namespace(gen=options.compare, disc=None, config=None, tokenizer=None)
                models.append(_load(second))
            return serve(models, listener, options.host)
    from electra_albert.inference.rewrite import Draw

    draw = Draw(options.mask_rate, options.temperature, options.seed)
    if options.output:
        _rewrite_file(_load(options), options.input, options.output, draw)
    else:
        _print_answers(options, draw)
    return 0


def _print_answers(options: Namespace, draw: "Draw") -> None:
    """Print predictions or a rewritten text for each line, as tables or as JSON."""
    from electra_albert.inference import rewrite

    lines = _read_lines(options.input, _MOST_PRINTED) if options.input else SENTENCES
    numbered = [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise DataError(_NO_SENTENCE.format(options.input))
    model = _load(options)
    results = rewrite.rewrite(model, numbered, draw)
    masked = [result.original for result in results if result.is_filled]
    predictions = iter(model.fill_mask(masked, options.top_k))
    if options.json:
        answers: list[Any] = []
        for result in results:
            if result.is_filled:
                answers.append(next(predictions))
            else:
                replaced = [replacement._asdict() for replacement in result.replaced]
                answers.append(
                    {
                        "sequence": result.sequence,
                        "original": result.original,
                        "replaced": replaced,
                    }
                )
        with _open_output(PIPE) as stream:
            print(json.dumps(answers, ensure_ascii=False), file=stream)
        return
    colours = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    for (_, text), result in zip(numbered, results, strict=True):
        if result.is_filled:
            answer: Any = next(predictions)
            columns = answer if isinstance(answer[0], list) else [answer]
            print(rewrite.format_predictions(text, columns, colours=colours))
            if model.discriminator is not None:
                scores = [(token, score) for token, score, _ in result.scores]
                print(rewrite.format_scored(scores, colours=colours))
        else:
            print(rewrite.format_rewritten(result, colours=colours))
        print()


def _parse(argv: Sequence[str]) -> Namespace:
    program = command_line.program("demo")
    examples = command_line.format_examples(f"  {program}", _EXAMPLES)
    parser = command_line.make_parser(program, str(__doc__), epilog=f"examples:\n{examples}")
    for name, text in _PATHS.items():
        parser.add_argument(f"--{name}", type=str | None, help=text)
    for name, (default, text) in _OPTIONS.items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help=text)
    parser.add_argument("--json", action="store_true", help=" ".join(_JSON_HELP.split()))
    parser.add_argument(
        "--serve", action="store_true", help="Serve a page in the browser instead (needs gradio)."
    )
    options = command_line.parse(parser, argv, file_option="input")
    idle = (_NOT_ON_PAGE, "with") if options.serve else (_ONLY_ON_PAGE, "without")
    for name in idle[0].split():
        is_default = options[name] == parser.get_default(name)
        require(is_default, f"--{name} has no effect {idle[1]} --serve; leave it out")
    require(options.top_k >= 1, f"top_k={options.top_k} must be at least 1")
    if not options.output:
        return options
    can_rewrite = options.input and not options.json
    require(can_rewrite, f"--output needs --input FILE, or {PIPE} for stdin, and excludes --json")
    if options.output != PIPE:
        target = Path(options.output)
        command_line.check_can_write(target.absolute().parent)
        if target.exists() and not target.is_file():
            raise UsageError(
                f"cannot write {target}: not a regular file; name a file, or {PIPE} for stdout"
            )
        if target.resolve() == Path(options.input).resolve():
            raise UsageError(
                f"--output {target} is the input file and would be overwritten; name another file"
            )
    return options


def _load(options: Namespace) -> "InferenceModel":
    """Load the generator and discriminator that are named, or the default ones."""
    from electra_albert.inference.model import load_model

    path = Path(options.gen or default_model.default_model("--gen"))
    folder = (path if path.is_dir() else path.parent).absolute()
    sibling = folder.parent / "discriminator"
    disc = options.disc
    if not disc and folder.name == "generator" and sibling.is_dir():
        disc = sibling
    model = load_model(
        path, "cpu", discriminator=disc, config=options.config, tokenizer=options.tokenizer
    )
    if model.generator is None:
        raise CheckpointError(
            f"{path} has no masked-token head (predictions); name a model that has one"
        )
    if model.discriminator is None:
        print(
            "notice: no discriminator with a detection head, so tokens are not scored",
            file=sys.stderr,
        )
    return model


def _read_lines(source: str, most: float = math.inf) -> Iterator[str]:
    """Lines of a UTF-8 file or stdin, with their line feeds; very long ones in parts.

    Only a line feed ends a line. Raises DataError for more than `most` characters.
    """
    is_pipe = source == PIPE
    name = "stdin" if is_pipe else source
    try:
        file = sys.stdin.fileno() if is_pipe else source
        with open(file, encoding="utf-8-sig", newline="\n", closefd=not is_pipe) as stream:
            mode = os.fstat(stream.fileno()).st_mode
            if not is_pipe and stat.S_ISCHR(mode):  # /dev/zero has no end
                raise UsageError(f"cannot read {name}: a device; name a file, or {PIPE} for stdin")
            for line in iter(lambda: stream.readline(_LONGEST_LINE), ""):
                most -= len(line)
                if most < 0:
                    raise DataError(
                        f"{name} is over {_MOST_PRINTED:,} characters long; "
                        "rewrite it with --output FILE"
                    )
                yield line
    except UnicodeDecodeError:
        raise DataError(f"{name} is not UTF-8 text; convert it first") from None
    except OSError as error:
        raise UsageError(
            f"cannot read {name} ({error.strerror}); name a file with one sentence per line"
        ) from None


@contextmanager
def _open_output(target: str) -> Iterator[TextIO]:
    """Open stdout, or a file that is created only if the block succeeds."""
    if target == PIPE:
        if isinstance(sys.stdout, TextIOWrapper):  # UTF-8 on any terminal: programs read it
            sys.stdout.reconfigure(encoding="utf-8", errors="strict", newline="")
        yield sys.stdout
        return
    path = Path(target).resolve()  # for a link, its target is replaced
    with writing(Path(target)):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            if path.exists():  # before the text is written: it may be private
                shutil.copymode(path, file.name)
            stream = TextIOWrapper(file, encoding="utf-8", newline="")
            yield stream
            stream.detach()


def _rewrite_file(model: "InferenceModel", source: str, target: str, draw: "Draw") -> None:
    """Rewrite a file line by line and print a report; on stderr if the text goes to stdout."""
    from tqdm import tqdm

    from electra_albert.inference.rewrite import rewrite_lines

    counts = Counter[str]()
    scored = [0, 0]  # tokens: unchanged, changed
    total = [0.0, 0.0]  # of their probabilities
    with _open_output(target) as stream:
        lines = tqdm(_read_lines(source), unit=" lines", disable=None, leave=False)
        for text, result in rewrite_lines(model, lines, draw):
            stream.write(text)
            replaced = result.replaced
            is_blank = not result.original.strip()
            counts.update(lines=1, blank=is_blank, rewritten=bool(replaced))
            for replacement in replaced:
                lost = replacement.after.count(LOST) - replacement.before.count(LOST)
                counts["lost"] += max(0, lost)
            if result.is_filled:
                counts["filled"] += len(replaced)
                continue
            counts["masked"] += len(replaced)
            counts["changed"] += sum(replacement.is_changed for replacement in replaced)
            for _, probability, is_changed in result.scores:
                scored[is_changed] += 1
                total[is_changed] += probability
        if counts["lines"] == counts["blank"]:
            raise DataError(_NO_SENTENCE.format(source))
    rewritten = counts["rewritten"]
    unchanged = counts["lines"] - counts["blank"] - rewritten
    report = f"""lines: {rewritten:,} rewritten, {unchanged:,} unchanged, {counts["blank"]:,} blank
tokens: {counts["masked"]:,} masked, {counts["changed"]:,} of them changed"""
    report += f"; {MASK}s filled: {counts['filled']:,}"
    if model.discriminator is not None:
        old = total[False] / max(1, scored[False])
        new = total[True] / max(1, scored[True])
        means = f"{new:.1%} for changed tokens, {old:.1%} for the others"
        report += f"\nmean probability of replacement: {means}"
    if counts["lost"]:
        report += f"\nincomplete characters, written as {LOST}: {counts['lost']:,}"
    if target == PIPE:
        print(report, file=sys.stderr)
    else:
        print(f"{report}\nwritten to {target}")
