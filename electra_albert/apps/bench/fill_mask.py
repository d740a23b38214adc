"""Filling masks and turning text into vectors: how long it takes here and in transformers' pipelines."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from electra_albert.apps.bench.config import OURS, BenchConfig, spread
from electra_albert.apps.bench.lines import sample_lines
from electra_albert.apps.bench.timing import in_turns
from electra_albert.config import PretrainConfig
from electra_albert.contracts import DataError, UserError

if TYPE_CHECKING:
    from torch import Tensor

    from electra_albert.corpus.tokenizer import Tokenizer
    from electra_albert.model.electra import Generator

LOG = logging.getLogger(__name__)

Proposal = dict[str, Any]
_Seconds = dict[str, list[float]]  # of each contender

SENTENCES = 32
TOP_K = 5
SCORE_TOLERANCE = 1e-3  # relative, in float32: a probability carries the rounding of its logit and of their sum
VECTOR_TOLERANCE = 1e-4  # absolute, in float32, at the size LayerNorm gives
_WORDS = range(5, 41)  # in a sentence that is taken
# Under the preset's own small weights all scores are nearly those of guessing, and equal for what differs.
_WIDE_WEIGHTS = 0.1
_ONE_BY_ONE, _STOCK, _BATCHED = f"{OURS}, one by one", "pipeline", f"pipeline, batch_size={SENTENCES}"


class _Calls(NamedTuple):
    """The same model, asked here and by transformers' pipelines."""

    ours: Callable[[str], list[Proposal]]  # one sentence
    together: Callable[[list[str]], list[list[Proposal]]]
    stock: Callable[..., Any]  # one sentence or many
    features: Callable[[list[str]], list[Tensor]]  # of each sentence, the vectors of its tokens
    stock_features: Callable[..., list[Tensor]]


def measure_fill_mask(config: BenchConfig, settings: PretrainConfig) -> dict[str, Any]:
    """Seconds for a sentence, and for a batch of them, in turns; float32, weights drawn at random.

    Raises UserError where the two do not propose the same, or give other vectors.
    """
    from electra_albert.apps.prepare.main import prepare
    from electra_albert.hub.save import quiet_transformers
    from electra_albert.training.distributed import start

    device = start(config.device).device
    tokenizer = prepare(settings.corpus, config.seed).tokenizer
    sentences = masked_sentences(sample_lines(settings.corpus, config.seed), tokenizer.mask_token)
    generator = _generator(settings, len(tokenizer), config.seed)
    with TemporaryDirectory(prefix="bench-") as name, quiet_transformers():
        calls = _calls(generator, tokenizer, Path(name), device)
        _check_calls(calls, sentences)
        LOG.info(f"ours and the pipelines give the same for {len(sentences)} sentences")
        one = _time_one(calls, sentences, config.repeats, device)
        many = _time_many(calls, sentences, config.repeats, device)
        vectors = _time_features(calls, sentences, config.repeats, device)
    return {
        "preset": config.presets[0],
        "vocab_size": len(tokenizer),
        "hidden_size": generator.config.hidden_size,
        "sentences": SENTENCES,
        "top_k": TOP_K,
        "repeats": config.repeats,
        "one": _records(one),
        "batch": _records(many),
        "features": _records(vectors),
    }


def _calls(generator: Generator, tokenizer: Tokenizer, folder: Path, device: Any) -> _Calls:
    """Ours and stock's, on the device; `folder` is where the generator is exported to for those that read it."""
    from transformers import pipeline

    from electra_albert.hub.save import save_model
    from electra_albert.inference.fill_mask import fill_masks
    from electra_albert.inference.model import load_model

    save_model(generator, tokenizer, folder)
    place: dict[str, Any] = {"model": str(folder), "tokenizer": str(folder), "device": device}
    stock, stock_features = pipeline("fill-mask", top_k=TOP_K, **place), pipeline("feature-extraction", **place)
    model = load_model(folder, str(device))
    generator.to(device)
    return _Calls(
        lambda sentence: fill_masks(generator, tokenizer, sentence, TOP_K)[0],
        lambda sentences: model.fill_mask(sentences, TOP_K),
        stock,
        lambda sentences: [found.tokens for found in model.features(sentences)],
        lambda sentences, **options: [rows[0] for rows in stock_features(sentences, return_tensors=True, **options)],
    )


def _check_calls(calls: _Calls, sentences: list[str]) -> None:
    for sentence, in_batch in zip(sentences, calls.together(sentences), strict=True):
        for mine in (calls.ours(sentence), in_batch):
            check_same_proposals(sentence, mine, calls.stock(sentence))
    both = zip(calls.features(sentences), calls.stock_features(sentences), strict=True)
    for sentence, (vectors, stock_vectors) in zip(sentences, both, strict=True):
        is_same = vectors.shape == stock_vectors.shape
        if not is_same or float((vectors - stock_vectors).abs().max()) > VECTOR_TOLERANCE:
            raise UserError(f"ours and the pipeline give other vectors for {sentence!r}; no ratio is printed")


def _generator(settings: PretrainConfig, vocab_size: int, seed: int) -> Generator:
    """A generator of the settings' shape whose proposals differ, on the CPU."""
    import torch

    from electra_albert.model.electra import masked_language_model

    torch.manual_seed(seed)
    shape = replace(settings.model, vocab_size=vocab_size, initializer_range=_WIDE_WEIGHTS)
    return masked_language_model(settings.rtd.generator(shape)).eval()


def _time_one(calls: _Calls, sentences: list[str], repeats: int, device: Any) -> _Seconds:
    """Seconds of each contender for one sentence, of every one of them."""
    one: _Seconds = {OURS: [], _STOCK: []}
    for sentence in sentences:
        asked = {OURS: partial(calls.ours, sentence), _STOCK: partial(calls.stock, sentence)}
        for contender, seconds in in_turns(asked, repeats, device).items():
            one[contender] += seconds
    return one


def _time_many(calls: _Calls, sentences: list[str], repeats: int, device: Any) -> _Seconds:
    """Seconds of each contender for all sentences."""
    asked: dict[str, Callable[[], object]] = {
        OURS: lambda: calls.together(sentences),
        _ONE_BY_ONE: lambda: [calls.ours(sentence) for sentence in sentences],
        _STOCK: lambda: calls.stock(sentences),
        _BATCHED: lambda: calls.stock(sentences, batch_size=SENTENCES),
    }
    return in_turns(asked, repeats, device)


def _time_features(calls: _Calls, sentences: list[str], repeats: int, device: Any) -> _Seconds:
    """Seconds of each contender for the vectors of all sentences."""
    asked: dict[str, Callable[[], object]] = {
        OURS: lambda: calls.features(sentences),
        _STOCK: lambda: calls.stock_features(sentences),
        _BATCHED: lambda: calls.stock_features(sentences, batch_size=SENTENCES),
    }
    return in_turns(asked, repeats, device)


def masked_sentences(lines: Sequence[str], mask_token: str) -> list[str]:
    """Real sentences with the middle word of each masked, taken evenly from the lines; few are taken several times."""
    found = [words for words in map(str.split, lines) if len(words) in _WORDS and mask_token not in words]
    if not found:
        raise DataError(f"no line of the corpus has {_WORDS[0]} to {_WORDS[-1]} words; bench another corpus")
    sentences = []
    for words in found[:: max(1, len(found) // SENTENCES)]:
        words[len(words) // 2] = mask_token
        sentences.append(" ".join(words))
    return list(islice(cycle(sentences), SENTENCES))


def check_same_proposals(sentence: str, ours: Sequence[Proposal], stock: Sequence[Proposal]) -> None:
    """UserError unless both propose the same tokens for the same sentence; only tied ones may change places."""
    expected = {proposal["token"]: proposal for proposal in stock}
    lowest = min(proposal["score"] for proposal in stock)
    for mine in ours:
        theirs = expected.get(mine["token"], {**mine, "score": lowest})  # or one that is tied with the last
        texts = [(proposal["token_str"], proposal["sequence"]) for proposal in (mine, theirs)]
        is_near = abs(mine["score"] - theirs["score"]) <= SCORE_TOLERANCE * theirs["score"]
        if len(ours) != len(stock) or not is_near or texts[0] != texts[1]:
            raise UserError(
                f"ours and the pipeline do not propose the same for {sentence!r}: {mine['token_str']!r} with "
                f"{mine['score']:.6g} here, {theirs['token_str']!r} with {theirs['score']:.6g} there; no ratio is "
                "printed: install the versions that requirements.txt pins"
            )


def _records(seconds: dict[str, list[float]]) -> dict[str, Any]:
    """Milliseconds of each, and how many times as long as ours it takes."""
    return {
        name: {
            "milliseconds": spread([1000 * second for second in times]),
            "ratio": spread([theirs / mine for theirs, mine in zip(times, seconds[OURS], strict=True)]),
        }
        for name, times in seconds.items()
    }


def format_fill_mask(result: dict[str, Any]) -> str:
    """The result as a table."""
    lines = [
        f"\nfill-mask: generator of preset {result['preset']} (H {result['hidden_size']}, V {result['vocab_size']:,}), "
        f"random weights, fp32, top {result['top_k']} (no target is stated)\n"
        f"{'':<36}{'ms':>10}{'lowest':>10}{'highest':>10}{'ours is':>9}"
    ]
    many = f"{result['sentences']} sentences"
    for what, key in (("one sentence", "one"), (many, "batch"), ("vectors of all", "features")):
        for name, record in result[key].items():
            time, ratio = record["milliseconds"], record["ratio"]
            against = "" if name == OURS else f"{ratio['median']:>8.2f}x"
            columns = f"{time['median']:>10.2f}{time['lowest']:>10.2f}{time['highest']:>10.2f}"
            lines.append(f"{what + ': ' + name:<36}{columns}{against}")
    lines.append(
        f"each of the {result['sentences']} sentences {result['repeats']} times alone, and all of them "
        f"{result['repeats']} times: ours in one call, or one by one; vectors of every token, as tensors"
    )
    return "\n".join(lines)
