"""How good a pretrained model is before it is fine-tuned: on masked tokens of new text, and on minimal pairs.

electra-albert score --model runs/mine --text unseen.txt
electra-albert score --model runs/mine --text unseen.txt --pairs blimp --output scores.json
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from electra_albert.apps.command_line import check_can_write, make_parser, parse
from electra_albert.contracts import UsageError

if TYPE_CHECKING:
    from jsonargparse import Namespace

    from electra_albert.inference.model import InferenceModel
    from electra_albert.inference.score_pairs import PairScores
    from electra_albert.inference.score_text import TextScore

_OPTIONS = ("text", "pairs", "max_seq_length", "text_column", "max_pairs", "device")


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the exit code."""
    options = _parse(argv)
    texts = [Path(name) for name in options.text or ()]
    pairs = None if options.pairs is None else Path(options.pairs)
    _require_files(texts, pairs)
    if options.output is not None:
        _check_output(Path(options.output))
    from electra_albert.inference.model import load_model
    from electra_albert.inference.score_pairs import score_pairs
    from electra_albert.inference.score_text import score_text

    model = load_model(options.model, options.device)
    left_out = _left_out(model, bool(texts), pairs is not None)
    for notice in left_out:
        print(f"notice: {notice}", file=sys.stderr)
    if model.generator is None:
        texts = []
    text_scores = [score_text(model, file, options.max_seq_length, options.text_column) for file in texts]
    if text_scores:
        print(format_texts(text_scores), flush=True)
    pair_scores = None
    if pairs is not None:
        pair_scores = score_pairs(model, pairs, options.max_pairs)
        print(("\n" if text_scores else "") + format_pairs(pair_scores), flush=True)
    if options.output is not None:
        _write(options, model, {"left_out": left_out, **as_json(text_scores, pair_scores)})
    return 0


def _parse(argv: Sequence[str]) -> Namespace:
    parser = make_parser("electra-albert score", "Score a pretrained model as it is.")
    parser.add_argument("--model", type=str, required=True, help="A run folder or a model folder, ours or stock.")
    parser.add_argument("--text", type=str, nargs="+", help="Files of unseen text, of any kind --corpus takes.")
    parser.add_argument("--pairs", type=str | None, default=None, help="A .jsonl of BLiMP's form, or a folder of them.")
    parser.add_argument(
        "--max_seq_length",
        type=int | None,
        default=None,
        help="Of rows of text; by default 128 or what the model reads.",
    )
    parser.add_argument("--text_column", type=str, default="text", help="What holds the text, in tables and records.")
    parser.add_argument("--max_pairs", type=int | None, default=None, help="Of each set the first so many pairs.")
    parser.add_argument("--output", type=str | None, default=None, help="File to write the scores into, as JSON.")
    parser.add_argument(
        "--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto: a GPU if there is one."
    )
    options = parse(parser, argv)
    for name in ("model", "pairs", "output"):
        if options[name] == "":
            raise UsageError(f"--{name} is empty; give a path")
    if not options.text and options.pairs is None:
        raise UsageError("there is nothing to score; give --text, --pairs or both")
    if options.max_pairs is not None and options.max_pairs < 1:
        raise UsageError(f"--max_pairs {options.max_pairs} must be at least 1")
    if options.max_pairs is not None and options.pairs is None:
        raise UsageError("--max_pairs has no effect without --pairs; leave it out")
    return options


def _require_files(texts: Sequence[Path], pairs: Path | None) -> None:
    """UsageError for what is not there, before anything is computed."""
    from electra_albert.inference.score_pairs import pair_files
    from electra_albert.inference.score_text import require_file

    for file in texts:
        require_file(file)
    if pairs is not None:
        pair_files(pairs)


def _check_output(output: Path) -> None:
    """UsageError unless `output` can be written and is new, or holds scores: a text or a model is not written over."""
    check_can_write(output.absolute().parent)
    if output.exists() and not output.is_file():
        raise UsageError(f"--output {output} is no file; name one")
    if output.exists() and not _holds_scores(output):
        raise UsageError(f"--output {output} is there and holds no scores, so it stays as it is; name another file")


def _holds_scores(file: Path) -> bool:
    """Whether that is a file that --output has written."""
    import json

    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and {"weights", "tokenizer", "options"} <= content.keys()


def _left_out(model: InferenceModel, has_text: bool, has_pairs: bool) -> list[str]:
    """What the model lacks the head for; UsageError where nothing of what is asked for remains."""
    has_mlm, has_detection = model.generator is not None, model.discriminator is not None
    told = []
    if has_text and not has_mlm:
        told.append("--text is left out: the model has no masked-token head")
    if has_pairs and not has_mlm:
        told.append("--pairs without likelihood: the model has no masked-token head")
    if has_pairs and not has_detection:
        told.append("--pairs without detection: the model has no detection head")
    if not has_mlm and not (has_pairs and has_detection):
        heads = "no masked-token head" + ("" if has_detection else " and no detection head")
        raise UsageError(f"the model has {heads}, so nothing asked for can be scored; name a run or its generator")
    return told


# What is told.


def format_texts(scores: Sequence[TextScore]) -> str:
    """A table of the texts, one a line."""
    rows = [
        [
            "text",
            "tokens",
            "words",
            "unknown",
            "nats a token",
            "of known ones",
            "frequencies alone",
            "accuracy %",
            "nats a word",
        ]
    ]
    rows[0].append("pseudo-perplexity a word")
    for score in scores:
        told = [f"{count:,}" for count in (score.tokens, score.words, score.unknown_tokens)]
        known = "-" if score.nats_per_known_token is None else f"{score.nats_per_known_token:.4f}"
        told += [f"{score.nats_per_token:.4f}", known, f"{score.unigram_entropy:.4f}", f"{100 * score.accuracy:.2f}"]
        perplexity = "-" if score.pseudo_perplexity is None else f"{score.pseudo_perplexity:,.1f}"
        rows.append([score.file.name, *told, f"{score.nats_per_word:.4f}", perplexity])
    return _table(rows, 1)


def format_pairs(scores: PairScores) -> str:
    """A table of the sets, of their terms, and of the mean with its standard error, in per cent."""
    ways = scores.ways
    rows = [["good above bad, %", "term", "pairs", *ways]]
    for one in scores.sets:
        rows.append([one.name, one.term, f"{one.pairs:,}", *(_percent(one.accuracy(way)) for way in ways)])
    by_way = {way: scores.of_terms(way) for way in ways}
    for term in by_way[ways[0]]:
        some = [one for one in scores.sets if one.term == term]
        rows.append([f"mean of {len(some)}", term, f"{sum(one.pairs for one in some):,}"])
        rows[-1] += [_percent(by_way[way][term]) for way in ways]
    rows.append([f"mean of {len(scores.sets)} sets", "", f"{scores.pairs:,}"])
    rows[-1] += [_percent(scores.accuracy(way)) for way in ways]
    rows.append(["standard error", "", "", *(_percent(scores.standard_error(way), 2) for way in ways)])
    rows.append(["ties, not counted as good", "", ""])
    rows[-1] += [f"{sum(one.outcomes[way].ties for one in scores.sets):,}" for way in ways]
    return _table(rows, 2)


def _percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f}"


def _table(rows: Sequence[Sequence[str]], texts: int) -> str:
    """Columns side by side, the first `texts` of them set to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        [
            cell.ljust(width) if place < texts else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        for row in rows
    )
    return "\n".join("  ".join(line).rstrip() for line in lines)


def as_json(texts: Sequence[TextScore], pairs: PairScores | None) -> dict[str, Any]:
    """The scores in full; shares are from 0 to 1."""
    means = ("nats_per_token", "nats_per_known_token", "accuracy", "nats_per_word", "pseudo_perplexity")
    found: dict[str, Any] = {
        "text": [
            {**score._asdict(), "file": str(score.file)} | {name: getattr(score, name) for name in means}
            for score in texts
        ],
        "pairs": None,
    }
    if pairs is not None:
        found["pairs"] = {way: _way_as_json(pairs, way) for way in pairs.ways}
    return found


def _way_as_json(scores: PairScores, way: str) -> dict[str, Any]:
    return {
        "mean": scores.accuracy(way),
        "standard_error": scores.standard_error(way),
        "pairs": scores.pairs,
        "terms": scores.of_terms(way),
        "sets": {
            one.name: {
                "term": one.term,
                "pairs": one.pairs,
                "accuracy": one.accuracy(way),
                **one.outcomes[way]._asdict(),
            }
            for one in scores.sets
        },
    }


def _write(options: Namespace, model: InferenceModel, scores: dict[str, Any]) -> None:
    from electra_albert.corpus.tokenizer import fingerprint
    from electra_albert.files import write_json

    output = Path(options.output)
    told = {
        "model": options.model,
        "weights": weights_of(Path(options.model)),
        "tokenizer": fingerprint(model.tokenizer),
    }
    content = {**told, "options": {name: options[name] for name in _OPTIONS}, **scores}
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        write_json(output, content)
    except OSError as error:
        raise UsageError(f"--output {output} cannot be written ({error.strerror}); name a file elsewhere") from None
    print(f"wrote {output}", file=sys.stderr)


def weights_of(path: Path) -> dict[str, str]:
    """The SHA-256 of each file of weights that `load_model(path)` reads, by the file's path."""
    from electra_albert.files import sha256
    from electra_albert.hub.load import locate, locate_encoder
    from electra_albert.hub.weights import all_files

    found = [locate_encoder(path)]
    if (path / "generator").is_dir():
        found.append(locate(path, "generator"))
    files = [part for one in found for part in all_files(one.weights)]
    return {str(file): sha256(file) for file in dict.fromkeys(files)}
