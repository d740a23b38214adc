"""Score a pretrained model without fine-tuning: on new text and on minimal pairs."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from jsonargparse import Namespace

from electra_albert.apps.command_line import (
    check_can_write,
    format_table,
    make_parser,
    option_names,
    parse,
    refuse_idle,
)
from electra_albert.config.checks import require
from electra_albert.contracts import LOG
from electra_albert.files import read_json, sha256, write_json, writing
from electra_albert.training.run_log import console_log

_COLUMNS = {  # of the table of texts: key of the score, and its format
    "tokens": ("tokens", "{:,}"),
    "words": ("words", "{:,}"),
    "unknown": ("unknown_tokens", "{:,}"),
    "nats/token": ("nats_per_token", "{:.4f}"),
    "nats/known token": ("nats_per_known_token", "{:.4f}"),
    "unigram entropy": ("unigram_entropy", "{:.4f}"),
    "accuracy": ("accuracy", "{:.2%}"),
    "nats/word": ("nats_per_word", "{:.4f}"),
    "pseudo-perplexity/word": ("pseudo_perplexity", "{:,.1f}"),
}
_NO_MLM = "the model has no masked-token head"
_NO_DETECTION = "the model has no detection head"


def main(argv: Sequence[str]) -> int:
    """Entry point of `electra-albert score`; returns the exit code."""
    scores = _score(_parse(argv))
    if scores["text"]:
        print(format_texts(scores["text"]), end="\n\n" if scores["pairs"] else "\n")
    if scores["pairs"]:
        print(format_pairs(scores["pairs"]))
    return 0


def score(**options: Any) -> dict[str, Any]:
    """Score a model; `options` as on the command line, `text` as a list of files.

    Returns the content of --output. Raises UsageError, DataError or CheckpointError.
    """
    argv = []
    for name, value in options.items():
        if value is not None:
            values = value if isinstance(value, (list, tuple)) else [value]
            argv += [f"--{name}", *map(str, values)]
    with console_log():
        return _score(_parse(argv))


def _score(options: Namespace) -> dict[str, Any]:
    from electra_albert.hub.weights import all_files
    from electra_albert.inference import scoring
    from electra_albert.inference.model import load_model
    from electra_albert.tokenization.tokenizer import fingerprint
    from electra_albert.training.step import autocast

    texts = [*map(Path, options.text)]
    for file in texts:
        scoring.require_file(file)
    if options.pairs is not None:
        scoring.pair_files(Path(options.pairs))
    model = load_model(options.model, options.device, num_hidden_layers=options.num_hidden_layers)
    weights = {str(file): sha256(file) for file in chain(*map(all_files, model.weights))}
    has_mlm = model.generator is not None
    possible = {}  # whether the model has the head for each score
    if texts:
        possible[f"--text is skipped: {_NO_MLM}"] = has_mlm
    if options.pairs is not None:
        possible[f"--pairs without likelihood: {_NO_MLM}"] = has_mlm or model.energies is not None
        possible[f"--pairs without detection: {_NO_DETECTION}"] = model.discriminator is not None
    require(any(possible.values()), f"{_NO_MLM}, so it cannot be scored; name a run")
    left_out = [notice for notice in possible if not possible[notice]]
    for notice in left_out:
        LOG.info(f"notice: {notice}")
    pairs = None
    limits = (options.max_seq_length, options.text_column)
    with autocast(model.device, options.precision):
        scored = [scoring.score_text(model, file, *limits) for file in texts if has_mlm]
        if options.pairs is not None:
            pairs = scoring.score_pairs(model, Path(options.pairs), options.max_pairs)
    recorded = options.as_dict()
    output = recorded.pop("output")
    content = {
        "model": recorded.pop("model"),
        "weights": weights,
        "tokenizer": fingerprint(model.tokenizer),
        "options": recorded,
        "left_out": left_out,
        "text": scored,
        "pairs": pairs,
    }
    if output is not None:
        _write(Path(output), content)
    return content


def _write(output: Path, content: dict[str, Any]) -> None:
    with writing(output):
        output.parent.mkdir(parents=True, exist_ok=True)
        write_json(output, content)
    LOG.info(f"scores written to {output}")


def _parse(argv: Sequence[str]) -> Namespace:
    parser = make_parser("electra-albert score", "Score a pretrained model without fine-tuning.")
    parser.add_argument(
        "--model", type=str, required=True, help="Run folder or model folder, ours or stock."
    )
    parser.add_argument(
        "--text",
        type=str,
        nargs="+",
        default=[],
        help="Files of unseen text, in any format of --corpus.",
    )
    for name, kind, text in (
        ("pairs", str, "Minimal pairs: a .jsonl file in BLiMP's format, or a folder of them."),
        ("max_seq_length", int, "Tokens per sequence; by default 128, or the maximum if less."),
        ("max_pairs", int, "Number of pairs of each set to score, from the first; by default all."),
        (
            "num_hidden_layers",
            int,
            "Layers, a multiple of the encoder's groups; by default as trained.",
        ),
        ("output", str, "JSON file for the scores."),
    ):
        parser.add_argument(f"--{name}", type=kind | None, help=text)
    parser.add_argument(
        "--text_column", type=str, default="text", help="Column (or .jsonl key) with the text."
    )
    parser.add_argument(
        "--device",
        choices=["auto", "cpu", "cuda", "mps"],
        default="auto",
        help="auto: a CUDA GPU if there is one, else cpu.",
    )
    text = "Precision of the matrix products; bf16 is faster on some hardware, and rounds scores."
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32", help=text)
    options = parse(parser, argv)
    of_texts = {"max_seq_length", "text_column"}
    refuse_idle(option_names(argv), [(not options.text, of_texts, "no --text")])
    _check(options)
    return options


def _check(options: Namespace) -> None:
    """Raise UsageError for options that do not fit together, and for an output that is kept."""
    has_names = "" not in (options.model, options.pairs, options.output)
    require(has_names, "--model, --pairs and --output must not be empty; give a path for each")
    has_pairs = options.pairs is not None
    require(bool(options.text) or has_pairs, "nothing to score; give --text, --pairs or both")
    if options.max_pairs is not None:
        require(has_pairs, f"--max_pairs {options.max_pairs} needs --pairs")
        require(options.max_pairs > 0, f"--max_pairs {options.max_pairs} must be above 0")
    if options.output is not None:  # only earlier scores are overwritten
        output = Path(options.output)
        check_can_write(output.absolute().parent)
        is_scores = read_json(output, {"weights": dict, "tokenizer": str, "options": dict})
        require(
            bool(is_scores) or not output.exists(),
            f"--output {output} exists and is not a file of scores; name another file",
        )


def format_texts(scores: Sequence[dict[str, Any]]) -> str:
    """Format the scores of texts as a table."""
    rows = [["text", *_COLUMNS]]
    for text in scores:
        rows.append([Path(text["file"]).name])
        for name, form in _COLUMNS.values():
            rows[-1].append("-" if text[name] is None else form.format(text[name]))
    return format_table(rows)


def format_pairs(scores: dict[str, dict[str, Any]]) -> str:
    """Format accuracies on minimal pairs as a table, one column per head.

    accuracy                 term       pairs  likelihood  detection
    anaphor_agreement        agreement  1,000       81.0%      76.2%
    mean of 1                agreement  1,000       81.0%      76.2%
    mean of 1 sets                      1,000       81.0%      76.2%
    standard error                                  1.24%      1.35%
    ties (counted as wrong)                             0          2
    """
    heads = list(scores.values())
    sets = heads[0]["sets"]
    lines = []
    for name, part in sets.items():
        shares = [head["sets"][name]["accuracy"] for head in heads]
        lines.append((name, part["term"], part["pairs"], shares))
    for term in heads[0]["terms"]:
        counts = [part["pairs"] for part in sets.values() if part["term"] == term]
        shares = [head["terms"][term] for head in heads]
        lines.append((f"mean of {len(counts)}", term, sum(counts), shares))
    means = [head["mean"] for head in heads]
    lines.append((f"mean of {len(sets)} sets", "", heads[0]["pairs"], means))
    rows = [["accuracy", "term", "pairs", *scores]]
    for name, term, pairs, shares in lines:
        rows.append([name, term, f"{pairs:,}", *map("{:.1%}".format, shares)])
    errors = [f"{head['standard_error']:.2%}" for head in heads]
    rows.append(["standard error", "", "", *errors])
    ties = [f"{sum(part['ties'] for part in head['sets'].values()):,}" for head in heads]
    return format_table([*rows, ["ties (counted as wrong)", "", "", *ties]], left=2)
