"""Fill the [MASK]s of sentences with a pretrained generator; mask and rewrite sentences that have none."""

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
from electra_albert.contracts import CheckpointError, DataError, UsageError
from electra_albert.files import replacing

if TYPE_CHECKING:
    from electra_albert.inference.model import InferenceModel
    from electra_albert.inference.rewrite import Draw, Rewritten

MASK, PIPE = "[MASK]", "-"
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
_OPTIONS: dict[str, tuple[Any, Any, str]] = {  # type, default and help
    "gen": (str | None, None, "Run, model folder or weights file; by default the newest run, else the shipped model."),
    "disc": (str | None, None, "Discriminator; by default the one next to --gen."),
    "config": (str | None, None, "config.json for a weights file."),
    "tokenizer": (str | None, None, "Tokenizer folder for a weights file."),
    "input": (str | None, None, f"Text file, one sentence per line; {PIPE} for stdin."),
    "output": (str | None, None, f"File for rewritten lines, {MASK}s filled by the top prediction; {PIPE} for stdout."),
    "top_k": (int, 5, f"Number of predictions for each {MASK}."),
    "mask_rate": (float, 0.15, f"Fraction of tokens to mask in a sentence without {MASK}."),
    "temperature": (float, 1.0, "Sampling temperature; higher gives more varied text."),
    "seed": (int, 42, "Random seed for masking and sampling, combined with the line number."),
    "host": (str, "127.0.0.1", "Address of the page; 0.0.0.0 admits other machines."),
    "port": (int, 7860, "Port of the page; 0 takes a free one."),
    "compare": (str | None, None, "Second model, shown next to --gen on the page."),
}
_NOT_ON_PAGE = ("input", "output", "top_k", "mask_rate", "temperature", "seed", "json")
_ONLY_ON_PAGE = ("host", "port", "compare")
_JSON_HELP = f"""Print a JSON array with one element per line of text: with {MASK} the output of the fill-mask pipeline,
else {{"sequence": after, "original": before, "replaced": [{{"start", "end", "before", "after", "probability",
"is_changed"}}, ...]}}; start and end in characters of the original; probability null without a discriminator."""
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
            second = Namespace(gen=options.compare, disc=None, config=None, tokenizer=None)
            models = [_load(options), *([_load(second)] if options.compare else [])]
            return serve(models, listener, options.host)
    from electra_albert.inference.rewrite import Draw, format_predictions, format_rewritten, format_scored, rewrite

    draw = Draw(options.mask_rate, options.temperature, options.seed)
    if options.output:
        _rewrite_file(_load(options), options.input, options.output, draw)
        return 0
    lines = enumerate(map(str.strip, _read_lines(options.input, _MOST_PRINTED) if options.input else SENTENCES), 1)
    if not (numbered := [(number, text) for number, text in lines if text]):
        raise DataError(_NO_SENTENCE.format(options.input))
    model = _load(options)
    results = rewrite(model, numbered, draw)
    predictions = iter(model.fill_mask([result.original for result in results if result.is_filled], options.top_k))
    answers: list[Any] = [next(predictions) if result.is_filled else _as_json(result) for result in results]
    if options.json:
        _use_utf8(sys.stdout)
        print(json.dumps(answers, ensure_ascii=False))
        return 0
    colours = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    for (_, text), answer, result in zip(numbered, answers, results, strict=True):
        if result.is_filled:
            columns = answer if isinstance(answer[0], list) else [answer]
            print(format_predictions(text, columns, colours=colours))
            if model.discriminator is not None:
                print(format_scored(((token, score) for token, score, _ in result.scores), colours=colours))
        else:
            print(format_rewritten(result, colours=colours))
        print()
    return 0


def _as_json(result: "Rewritten") -> dict[str, Any]:
    replaced = [replacement._asdict() for replacement in result.replaced]
    return {"sequence": result.sequence, "original": result.original, "replaced": replaced}


def _parse(argv: Sequence[str]) -> Namespace:
    program = command_line.program("demo")
    examples = command_line.format_examples(f"  {program}", _EXAMPLES)
    parser = command_line.make_parser(program, str(__doc__), epilog=f"examples:\n{examples}")
    for name, (kind, default, text) in _OPTIONS.items():
        parser.add_argument(f"--{name}", type=kind, default=default, help=text)
    parser.add_argument("--json", action="store_true", help=" ".join(_JSON_HELP.split()))
    parser.add_argument("--serve", action="store_true", help="Serve a page in the browser instead (needs gradio).")
    options = command_line.parse(parser, argv, file_option="input")
    for name in _NOT_ON_PAGE if options.serve else _ONLY_ON_PAGE:
        if options[name] != parser.get_default(name):
            raise UsageError(f"--{name} has no effect {'with' if options.serve else 'without'} --serve; leave it out")
    if options.top_k < 1:
        raise UsageError(f"top_k={options.top_k} must be at least 1")
    if options.output and (options.json or not options.input):
        raise UsageError(f"--output needs --input FILE, or {PIPE} for stdin, and excludes --json")
    if options.output and options.output != PIPE:
        target = Path(options.output)
        command_line.check_can_write(target.absolute().parent)
        if target.exists() and not target.is_file():
            raise UsageError(f"cannot write {target}: not a regular file; name a file, or {PIPE} for stdout")
        if target.resolve() == Path(options.input).resolve():
            raise UsageError(f"--output {target} is the input file and would be overwritten; name another file")
    return options


def _load(options: Namespace) -> "InferenceModel":
    """Load the generator and discriminator that are named, or the default ones."""
    from electra_albert.inference.model import load_model

    path = Path(options.gen) if options.gen else default_model.default_model("--gen")
    folder = path.absolute() if path.is_dir() else path.absolute().parent
    sibling = folder.parent / "discriminator"
    disc = options.disc or (sibling if folder.name == "generator" and sibling.is_dir() else None)
    model = load_model(path, "cpu", discriminator=disc, config=options.config, tokenizer=options.tokenizer)
    if model.generator is None:
        raise CheckpointError(f"{path} has no masked-token head (predictions); name a model that has one")
    if model.discriminator is None:
        print("notice: no discriminator next to this generator, so tokens are not scored", file=sys.stderr)
    return model


def _read_lines(source: str, most: float = math.inf) -> Iterator[str]:
    """Lines of a UTF-8 file or stdin, with their line feeds; very long ones in parts. Only a line feed ends a line.

    Raises DataError for more than `most` characters.
    """
    name = "stdin" if source == PIPE else source
    try:
        file = sys.stdin.fileno() if source == PIPE else source
        with open(file, encoding="utf-8-sig", newline="\n", closefd=source != PIPE) as stream:
            if source != PIPE and stat.S_ISCHR(os.fstat(stream.fileno()).st_mode):  # /dev/zero has no end
                raise UsageError(f"cannot read {name}: a device; name a file, or {PIPE} for stdin")
            while line := stream.readline(_LONGEST_LINE):
                most -= len(line)
                if most < 0:
                    raise DataError(f"{name} is over {_MOST_PRINTED:,} characters long; rewrite it with --output FILE")
                yield line
    except UnicodeDecodeError:
        raise DataError(f"{name} is not UTF-8 text; convert it first") from None
    except OSError as error:
        raise UsageError(f"cannot read {name} ({error.strerror}); name a file with one sentence per line") from None


@contextmanager
def _open_output(target: str) -> Iterator[TextIO]:
    """Open stdout, or a file that is created only if the block succeeds."""
    if target == PIPE:
        _use_utf8(sys.stdout)
        yield sys.stdout
        return
    path = Path(target).resolve()  # for a link, its target is replaced
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            if path.exists():  # before the text is written: it may be private
                shutil.copymode(path, file.name)
            yield (stream := TextIOWrapper(file, encoding="utf-8", newline=""))
            stream.detach()
    except OSError as error:
        raise UsageError(f"cannot write {target} ({error.strerror}); name another file") from None


def _use_utf8(stream: TextIO) -> None:
    """Switch to UTF-8 regardless of the terminal's encoding, for text and JSON that another program reads."""
    if isinstance(stream, TextIOWrapper):
        stream.reconfigure(encoding="utf-8", errors="strict", newline="")


def _rewrite_file(model: "InferenceModel", source: str, target: str, draw: "Draw") -> None:
    """Rewrite a file line by line and print a report; on stderr if the text goes to stdout."""
    from tqdm import tqdm

    from electra_albert.inference.rewrite import rewrite_lines

    counts: Counter[str] = Counter()
    scored, total = [0, 0], [0.0, 0.0]  # tokens and the sum of their probabilities: unchanged, changed
    with _open_output(target) as stream:
        lines = tqdm(_read_lines(source), unit=" lines", disable=None, leave=False)
        for text, (original, replaced, is_filled, scores) in rewrite_lines(model, lines, draw):
            stream.write(text)
            counts.update(lines=1, blank=not original.strip(), rewritten=bool(replaced))
            counts["lost"] += sum(max(0, it.after.count(LOST) - it.before.count(LOST)) for it in replaced)
            if is_filled:
                counts["filled"] += len(replaced)
                continue
            counts.update(masked=len(replaced), changed=sum(it.is_changed for it in replaced))
            for _, probability, is_changed in scores:
                scored[is_changed] += 1
                total[is_changed] += probability
        if counts["lines"] == counts["blank"]:
            raise DataError(_NO_SENTENCE.format(source))
    untouched = counts["lines"] - counts["blank"] - counts["rewritten"]
    report = f"""lines: {counts["rewritten"]:,} rewritten, {untouched:,} unchanged, {counts["blank"]:,} blank
tokens: {counts["masked"]:,} masked, {counts["changed"]:,} of them changed; {MASK}s filled: {counts["filled"]:,}"""
    if model.discriminator is not None:
        old, new = (sum_of / max(1, count) for sum_of, count in zip(total, scored, strict=True))
        report += f"\nmean probability of replacement: {new:.1%} for changed tokens, {old:.1%} for the others"
    if counts["lost"]:
        report += f"\nincomplete characters, written as {LOST}: {counts['lost']:,}"
    if target == PIPE:
        print(report, file=sys.stderr)
    else:
        print(f"{report}\nwritten to {target}")
