"""Score a pretrained model without fine-tuning: on masked tokens of new text, and on minimal pairs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jsonargparse import Namespace

from electra_albert.apps.command_line import check_can_write, format_table, make_parser, parse
from electra_albert.contracts import LOG, UsageError
from electra_albert.files import read_json, sha256, write_json
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


def main(argv: Sequence[str]) -> int:
    """Entry point of `electra-albert score`; returns the exit code."""
    scores = _score(_parse(argv))
    tables = [form(scores[kind]) for kind, form in (("text", format_texts), ("pairs", format_pairs)) if scores[kind]]
    print("\n\n".join(tables))
    return 0


def score(**options: Any) -> dict[str, Any]:
    """Score a pretrained model without fine-tuning; `options` as on the command line, `text` as a list of files.

    Returns the content of --output. Raises UsageError, DataError or CheckpointError.
    """
    given = {name: value for name, value in options.items() if value is not None}
    argv = [[f"--{name}", *map(str, value if isinstance(value, list) else [value])] for name, value in given.items()]
    with console_log():
        return _score(_parse([word for words in argv for word in words]))


def _score(options: Namespace) -> dict[str, Any]:
    from electra_albert.hub.weights import all_files
    from electra_albert.inference.model import load_model
    from electra_albert.inference.scoring import pair_files, require_file, score_pairs, score_text
    from electra_albert.tokenization.tokenizer import fingerprint
    from electra_albert.training.step import autocast

    texts = [Path(name) for name in options.text or ()]
    for file in texts:
        require_file(file)
    if options.pairs is not None:
        pair_files(Path(options.pairs))
    model = load_model(options.model, options.device, num_hidden_layers=options.num_hidden_layers)
    has_mlm, has_detection = model.generator is not None, model.discriminator is not None
    has_likelihood = has_mlm or model.energies is not None
    if not has_mlm and not (options.pairs is not None and (has_likelihood or has_detection)):
        raise UsageError("the model has no masked-token head, so it cannot be scored; name a run")
    left_out = ["--text is skipped: the model has no masked-token head"] * (not has_mlm and bool(texts))
    if options.pairs is not None:
        left_out += ["--pairs without likelihood: the model has no masked-token head"] * (not has_likelihood)
        left_out += ["--pairs without detection: the model has no detection head"] * (not has_detection)
    for notice in left_out:
        LOG.info(f"notice: {notice}")
    with autocast(model.device, options.precision):
        scored = [score_text(model, file, options.max_seq_length, options.text_column) for file in texts * has_mlm]
        pairs = score_pairs(model, Path(options.pairs), options.max_pairs) if options.pairs is not None else None
    content = {
        "model": options.model,
        "weights": {str(file): sha256(file) for weights in model.weights for file in all_files(weights)},
        "tokenizer": fingerprint(model.tokenizer),
        "options": {name: value for name, value in options.as_dict().items() if name not in ("model", "output")},
        "left_out": left_out,
        "text": scored,
        "pairs": pairs,
    }
    if options.output is not None:
        try:
            Path(options.output).parent.mkdir(parents=True, exist_ok=True)
            write_json(Path(options.output), content)
        except OSError as error:
            raise UsageError(f"--output {options.output} cannot be written ({error.strerror}); name another") from None
        LOG.info(f"scores written to {options.output}")
    return content


def _parse(argv: Sequence[str]) -> Namespace:
    parser = make_parser("electra-albert score", "Score a pretrained model without fine-tuning.")
    parser.add_argument("--model", type=str, required=True, help="Run folder or model folder, ours or stock.")
    parser.add_argument("--text", type=str, nargs="+", help="Files of unseen text, in any format of --corpus.")
    for name, kind, text in (
        ("pairs", str, "Minimal pairs: a .jsonl file in BLiMP's format, or a folder of them."),
        ("max_seq_length", int, "Tokens per sequence; by default 128, or the model's maximum if that is less."),
        ("max_pairs", int, "Number of pairs of each set to score, from the first; by default all."),
        ("num_hidden_layers", int, "Number of layers of the encoder, a multiple of its groups; by default as trained."),
        ("output", str, "JSON file for the scores."),
    ):
        parser.add_argument(f"--{name}", type=kind | None, default=None, help=text)
    parser.add_argument("--text_column", type=str, default="text", help="Column (or .jsonl key) with the text.")
    devices = ["auto", "cpu", "cuda", "mps"]
    parser.add_argument("--device", choices=devices, default="auto", help="auto: a CUDA GPU if there is one, else cpu.")
    precision = "Precision of the matrix products; bf16 is faster where the hardware has it, and rounds scores."
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32", help=precision)
    options = parse(parser, argv)
    if "" in (options.model, options.pairs, options.output):
        raise UsageError("--model, --pairs and --output must not be empty; give a path for each")
    if not options.text and options.pairs is None:
        raise UsageError("nothing to score; give --text, --pairs or both")
    if options.max_pairs is not None and (options.pairs is None or options.max_pairs < 1):
        raise UsageError(f"--max_pairs {options.max_pairs} {'must be above 0' if options.pairs else 'needs --pairs'}")
    if options.output is not None:  # only earlier scores are overwritten
        output = Path(options.output)
        check_can_write(output.absolute().parent)
        scores = read_json(output, {"weights": dict, "tokenizer": str, "options": dict})
        if output.exists() and not scores:
            raise UsageError(f"--output {output} exists and is not a file of scores; name another file")
    return options


def format_texts(scores: Sequence[dict[str, Any]]) -> str:
    """Format the scores of texts as a table."""
    rows = [["text", *_COLUMNS]]
    for one in scores:
        cells = ["-" if one[name] is None else form.format(one[name]) for name, form in _COLUMNS.values()]
        rows.append([Path(one["file"]).name, *cells])
    return format_table(rows)


def format_pairs(scores: dict[str, dict[str, Any]]) -> str:
    """Format accuracies on minimal pairs as a table: sets, means over terms, and the mean with its standard error."""
    ways = list(scores.values())
    sets, terms = ways[0]["sets"], ways[0]["terms"]
    shares = {name: [way["sets"][name]["accuracy"] for way in ways] for name in sets}
    lines = [(name, one["term"], one["pairs"], shares[name]) for name, one in sets.items()]
    for term in terms:
        counts = [one["pairs"] for one in sets.values() if one["term"] == term]
        lines.append((f"mean of {len(counts)}", term, sum(counts), [way["terms"][term] for way in ways]))
    lines.append((f"mean of {len(sets)} sets", "", ways[0]["pairs"], [way["mean"] for way in ways]))
    rows = [["accuracy", "term", "pairs", *scores]]
    rows += [[name, term, f"{pairs:,}", *(f"{share:.1%}" for share in found)] for name, term, pairs, found in lines]
    rows.append(["standard error", "", "", *(f"{way['standard_error']:.2%}" for way in ways)])
    ties = (f"{sum(one['ties'] for one in way['sets'].values()):,}" for way in ways)
    return format_table([*rows, ["ties (counted as wrong)", "", "", *ties]], left=2)
