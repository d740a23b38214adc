"""The model in a program: stock's numbers for the same folder, whatever is asked together, and clear refusals."""

from __future__ import annotations

import copy
import math
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from electra_albert.apps.pretrain import main as pretrain
from electra_albert.contracts import CheckpointError, UsageError
from electra_albert.hub.outputs import outputs
from electra_albert.inference.model import InferenceModel, Likelihood, load_model
from electra_albert.inference.rows import batches
from tests.apps.conftest import Finished
from tests.apps.tiny_run import call
from tests.corpus.tokenizer_kinds import save_bert, wordpiece_vocab

# Two float32 implementations of the same encoder, or one in batches of other shapes, whose sums run otherwise.
TOLERANCE = 1e-5
NATS_TOLERANCE = 1e-4  # of a sum of a dozen logarithms, each of a softmax over the vocabulary
SEED, LONGEST = 11, 43
SENTENCES = [
    "The old bridge [MASK] into the river.",
    "A [MASK] barked at the moon; [MASK] in the house heard [MASK].",
    "[MASK]",
    "People say a great many things, and the river sings at [MASK].",
]
PLAIN: list[str | tuple[str, str]] = [
    "The old bridge fell into the river.",
    "",
    "A dog",
    ("Was it built?", "It was not; the road ends."),
    "x" * 30,
]


def shape(**more: Any) -> dict[str, Any]:
    """A stock configuration of a few thousand numbers, far from all guesses being equal."""
    sizes = {"hidden_size": 28, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 37}
    special = {"pad_token_id": wordpiece_vocab(True)["[PAD]"], "vocab_size": len(wordpiece_vocab(True))}
    return {**sizes, **special, "max_position_embeddings": LONGEST, "initializer_range": 0.2, **more}


def make_stock(folder: Path, name: str, **more: Any) -> Any:
    """A folder as transformers writes it, with a BERT tokenizer; returns the stock model in it."""
    import transformers

    kind = getattr(transformers, name)
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        model = kind(kind.config_class(**shape(**more))).eval()
    model.save_pretrained(str(folder))
    save_bert(folder, True)
    return model


def tokenizer_of(folder: Path) -> Any:
    from transformers import BertTokenizer

    return BertTokenizer.from_pretrained(str(folder))


def stock_inputs(folder: Path, text: str | tuple[str, str]) -> dict[str, Tensor]:
    """One text or one pair as stock tokenises it."""
    texts = (text,) if isinstance(text, str) else text
    return dict(tokenizer_of(folder)(*texts, return_tensors="pt"))


MASKED = {
    "AlbertForMaskedLM": {"embedding_size": 11},
    "AlbertForPreTraining": {"embedding_size": 11},
    "BertForMaskedLM": {},
    "ElectraForMaskedLM": {"embedding_size": 12},
}


def difference(ours: Any, theirs: Any) -> str:
    """The first difference between two of the pipeline's answers, scores apart by more than the tolerance; or ''."""
    if isinstance(theirs, list):
        if not isinstance(ours, list) or len(ours) != len(theirs):
            return f"{ours}, not {theirs}"
        return next((found for pair in zip(ours, theirs, strict=True) if (found := difference(*pair))), "")
    is_near = abs(ours["score"] - theirs["score"]) <= TOLERANCE
    return "" if is_near and {**ours, "score": 0} == {**theirs, "score": 0} else f"{ours}, not {theirs}"


@pytest.mark.parametrize("name", MASKED)
def test_masks_are_filled_as_by_the_pipeline(tmp_path: Path, name: str) -> None:
    from transformers import AutoModelForMaskedLM, pipeline

    make_stock(tmp_path, name, **MASKED[name])
    stock = AutoModelForMaskedLM.from_pretrained(str(tmp_path))
    fill = pipeline("fill-mask", model=stock, tokenizer=tokenizer_of(tmp_path), device=torch.device("cpu"))
    model = load_model(tmp_path, device="cpu")
    assert difference(model.fill_mask(SENTENCES), fill(SENTENCES)) == ""
    for sentence in SENTENCES[:2]:
        assert difference(model.fill_mask(sentence, top_k=3), fill(sentence, top_k=3)) == ""
    targets = ["dog", "##e", "bridge", "dog"]
    chosen = model.fill_mask(SENTENCES, targets=targets)
    assert difference(chosen, fill(SENTENCES, targets=targets)) == ""
    assert {guess["token_str"] for guess in chosen[0]} == {"dog", "##e", "bridge"}


@pytest.fixture(scope="module")
def model(finished: Finished) -> InferenceModel:
    """The tiny run: a generator and a discriminator."""
    return load_model(finished.folder, device="cpu")


def test_masks_of_a_run_are_filled_as_by_the_pipeline(model: InferenceModel, finished: Finished) -> None:
    from transformers import pipeline

    folder = str(finished.folder / "generator")
    fill = pipeline("fill-mask", model=folder, tokenizer=folder, device=torch.device("cpu"))
    assert difference(model.fill_mask(SENTENCES), fill(SENTENCES)) == ""
    word = model.fill_mask(SENTENCES[0], targets="OWL")
    assert difference(word, fill(SENTENCES[0], targets="OWL")) == ""
    assert [guess["token"] for guess in word] == [model.tokenizer.get_vocab()["▁owl"]]


def test_a_list_gives_a_list_even_of_one(model: InferenceModel) -> None:
    assert model.fill_mask(SENTENCES[:1]) == [model.fill_mask(SENTENCES[0])]
    assert model.pseudo_log_likelihood(["A dog"]) == [model.pseudo_log_likelihood("A dog")]
    assert [len(model.features(["A dog"])), len(model.replaced_probabilities(["A dog"]))] == [1, 1]
    assert [model.fill_mask([]), model.features([]), model.pseudo_log_likelihood([])] == [[], [], []]


def test_more_guesses_than_tokens_are_all_tokens(model: InferenceModel) -> None:
    everything = model.fill_mask(SENTENCES[0], top_k=100_000)
    assert len(everything) == len(model.tokenizer)
    assert math.fsum(guess["score"] for guess in everything) == pytest.approx(1, abs=1e-5)


BODIES = {
    "AlbertModel": {"embedding_size": 11},
    "AlbertForPreTraining": {"embedding_size": 11},
    "BertModel": {},
    "BertForPreTraining": {},
    "ElectraModel": {"embedding_size": 12},
}


@pytest.mark.parametrize("name", BODIES)
def test_features_are_what_the_stock_encoder_gives(tmp_path: Path, name: str) -> None:
    stock = make_stock(tmp_path, name, **BODIES[name])
    model = load_model(tmp_path, device="cpu")
    pooling = "mean" if name.startswith("Electra") else "pooler"
    found, by_cls, by_mean = (model.features(PLAIN, choice) for choice in (pooling, "cls", "mean"))
    for text, ours, cls, mean in zip(PLAIN, found, by_cls, by_mean, strict=True):
        inputs = stock_inputs(tmp_path, text)
        with torch.no_grad():
            theirs = getattr(stock, stock.base_model_prefix, stock)(**inputs)
        hidden_states = theirs.last_hidden_state[0]
        assert ours.pieces == tokenizer_of(tmp_path).convert_ids_to_tokens(inputs["input_ids"][0].tolist())
        assert (ours.tokens - hidden_states).abs().max() <= TOLERANCE
        is_text = torch.tensor([piece not in ("[CLS]", "[SEP]") for piece in ours.pieces])
        expected = hidden_states[is_text if is_text.any() else ~is_text].mean(0)
        assert (mean.pooled - expected).abs().max() <= TOLERANCE
        assert (cls.pooled - hidden_states[0]).abs().max() <= TOLERANCE
        if pooling == "pooler":
            assert (ours.pooled - theirs.pooler_output[0]).abs().max() <= TOLERANCE


@pytest.mark.parametrize(
    "text", ["The dog fell. " * 30, ("A dog fell. " * 30, "Into the river."), ("A dog.", "x " * 90)]
)
def test_of_a_text_that_may_be_cut_what_stock_keeps_is_read(tmp_path: Path, text: str | tuple[str, str]) -> None:
    # Regression: one text that was too long failed all of them, and nothing could be done about it.
    make_stock(tmp_path, "BertModel")
    stock = tokenizer_of(tmp_path)
    kept = stock(*((text,) if isinstance(text, str) else text), truncation=True, max_length=LONGEST)["input_ids"]
    found = load_model(tmp_path, device="cpu").features([text, "A dog"], truncate=True)
    assert found[0].pieces == stock.convert_ids_to_tokens(kept)
    assert len(found[1].pieces) == 4


@pytest.mark.parametrize("call", ["fill_mask", "replaced_probabilities", "pseudo_log_likelihood"])
def test_every_call_may_cut_texts(model: InferenceModel, call: str) -> None:
    longest, text = model.encoder.config.max_position_embeddings, "[MASK] owl. " + "owl " * 99
    cut = "[MASK] owl. " + "owl " * (longest - 5)
    assert len(model.features(cut).pieces) == longest
    ask = getattr(model, call)
    assert numbers(ask([text, "[MASK]"], truncate=True)) == pytest.approx(
        numbers(ask([cut, "[MASK]"])), abs=NATS_TOLERANCE
    )


def test_what_a_model_can_do_is_shown(model: InferenceModel, finished: Finished) -> None:
    shown = repr(model)
    assert f"{str(finished.folder)!r} on cpu: 2 layers, hidden size 32, vocabulary" in shown
    assert shown.endswith("features, fill_mask, pseudo_log_likelihood, token_log_likelihoods, replaced_probabilities)")


def test_features_can_be_trained_on(model: InferenceModel) -> None:
    """Tensors of inference mode could not: autograd refuses to keep them."""
    for pooling in ("mean", "cls"):
        features = model.features("The quiet owl", pooling)
        layer = torch.nn.Linear(len(features.pooled), 1)
        (layer(features.pooled) + layer(features.tokens).sum()).sum().backward()
        assert layer.weight.grad is not None
        assert features.tokens.untyped_storage().nbytes() == 4 * features.tokens.numel()


def test_probabilities_of_replacement_are_what_stock_electra_gives(tmp_path: Path) -> None:
    stock = make_stock(tmp_path, "ElectraForPreTraining", embedding_size=12)
    for text, ours in zip(PLAIN, load_model(tmp_path, device="cpu").replaced_probabilities(PLAIN), strict=True):
        inputs = stock_inputs(tmp_path, text)
        with torch.no_grad():
            theirs = stock(**inputs).logits[0].sigmoid()
        pieces = tokenizer_of(tmp_path).convert_ids_to_tokens(inputs["input_ids"][0].tolist())
        places = [place for place, piece in enumerate(pieces) if piece not in ("[CLS]", "[SEP]")]
        assert [verdict.piece for verdict in ours] == [pieces[place] for place in places]
        assert [verdict.probability for verdict in ours] == pytest.approx(theirs[places].tolist(), abs=TOLERANCE)


def test_a_token_stands_where_its_characters_are(model: InferenceModel) -> None:
    text = " The  quiet Owl\u0301, near [SEP] the 漢字 and [MASK]"
    verdicts = model.replaced_probabilities(text)
    for piece, start, end, _ in verdicts:
        shown = text[start:end].lower().replace("\u0301", "")
        assert shown == piece.removeprefix("▁") or piece == "<unk>"
    assert "漢字" in [text[verdict.start : verdict.end] for verdict in verdicts]
    spelt = "".join(text[start:end] for _, start, end, _ in verdicts)
    assert spelt == text.replace("[SEP]", "").replace("[MASK]", "").replace(" ", "")


def test_of_a_pair_characters_are_counted_in_each_text(model: InferenceModel) -> None:
    pair = ("The owl", "left the  river")
    found = [(verdict.start, verdict.end) for verdict in model.replaced_probabilities(pair)]
    border = found.index((0, 4))
    assert "".join(pair[0][start:end] for start, end in found[:border]) == "Theowl"
    assert "".join(pair[1][start:end] for start, end in found[border:]) == "lefttheriver"


def by_hand(stock: Any, folder: Path, text: str | tuple[str, str]) -> float:
    """The pseudo-log-likelihood by its definition: one row and one masked token a call."""
    tokenizer = tokenizer_of(folder)
    inputs = stock_inputs(folder, text)
    total = 0.0
    for place, token in enumerate(inputs["input_ids"][0].tolist()):
        if token in (tokenizer.cls_token_id, tokenizer.sep_token_id):
            continue
        masked = inputs["input_ids"].clone()
        masked[0, place] = tokenizer.mask_token_id
        with torch.no_grad():
            logits = stock(**{**inputs, "input_ids": masked}).logits
        total += float(logits[0, place].double().log_softmax(-1)[token])
    return total


@pytest.mark.parametrize("name", ["AlbertForMaskedLM", "BertForMaskedLM"])
def test_pseudo_log_likelihood_is_its_definition_on_the_stock_model(tmp_path: Path, name: str) -> None:
    stock = make_stock(tmp_path, name, **MASKED[name])
    found = load_model(tmp_path, device="cpu").token_log_likelihoods(PLAIN)
    assert [likelihood.total for likelihood in found] == pytest.approx(
        [by_hand(stock, tmp_path, text) for text in PLAIN], abs=NATS_TOLERANCE
    )
    assert found[1] == Likelihood(0.0, [])
    assert all(
        likelihood.total == pytest.approx(math.fsum(nats for _, nats in likelihood.tokens)) for likelihood in found
    )


def test_an_unknown_token_is_scored_and_special_ones_in_the_text_are_not(model: InferenceModel) -> None:
    pieces = [piece for piece, _ in model.token_log_likelihoods("owl 漢 [MASK] owl [SEP] <pad>").tokens]
    assert pieces.count("<unk>") == 1
    assert pieces.count("▁owl") == 2
    assert not {"[MASK]", "[SEP]", "<pad>", "[CLS]"} & set(pieces)


def numbers(found: Any) -> list[float]:
    """Every number in an answer, in order."""
    if isinstance(found, Tensor):
        return found.flatten().tolist()
    if isinstance(found, dict):
        return numbers(list(found.values()))
    if isinstance(found, list | tuple):
        return [number for part in found for number in numbers(part)]
    return [] if isinstance(found, str) else [found]


TOLD = ["The quiet owl crossed the river.", "One lamp", "", "Every old cat found the key near a garden, at noon."] * 3
CALLS: dict[str, Callable[[InferenceModel], Any]] = {
    "fill_mask": lambda model: model.fill_mask([f"{text} [MASK]" for text in TOLD]),
    "features": lambda model: model.features(TOLD),
    "replaced_probabilities": lambda model: model.replaced_probabilities(TOLD),
    "pseudo_log_likelihood": lambda model: model.pseudo_log_likelihood(TOLD),
}


@pytest.mark.parametrize("call", CALLS)
def test_what_is_computed_together_changes_nothing(model: InferenceModel, finished: Finished, call: str) -> None:
    together = numbers(CALLS[call](model))
    for batch_tokens in (1, 37):
        apart = numbers(CALLS[call](load_model(finished.folder, "cpu", batch_tokens)))
        assert apart == pytest.approx(together, abs=NATS_TOLERANCE if "likelihood" in call else TOLERANCE)
        assert len(together) >= len(TOLD)


def test_no_batch_is_larger_than_it_may_be(finished: Finished) -> None:
    model, sizes = load_model(finished.folder, "cpu", 37), []
    model.encoder.embeddings.register_forward_hook(lambda *given: sizes.append(given[2].shape[:2]))
    model.features(TOLD)
    assert sum(rows for rows, _ in sizes) == len(TOLD)
    assert all(rows * length <= 37 for rows, length in sizes)
    assert any(rows > 1 for rows, _ in sizes)


@pytest.mark.parametrize("call", CALLS)
def test_threads_may_ask_at_once(model: InferenceModel, call: str) -> None:
    alone = numbers(CALLS[call](model))
    with ThreadPoolExecutor(4) as threads:
        for found in threads.map(lambda _: numbers(CALLS[call](model)), range(8)):
            assert found == pytest.approx(alone, abs=TOLERANCE)


@pytest.mark.parametrize("call", ["fill_mask", "pseudo_log_likelihood"])
def test_the_vocabulary_is_scored_at_masks_alone(model: InferenceModel, call: str) -> None:
    assert model.generator is not None
    seen: list[int] = []
    hook = model.generator.predictions.register_forward_hook(lambda *given: seen.append(given[2].shape[0]))
    found = CALLS[call](model)
    hook.remove()
    masks = len(found) if call == "fill_mask" else sum(len(each.tokens) for each in model.token_log_likelihoods(TOLD))
    assert sum(seen) == masks


def test_a_batch_holds_rows_of_similar_length_and_no_more_than_it_may() -> None:
    lengths = [7, 3, 50, 7, 2, 9, 8, 3]
    found = list(batches(lengths, 20))
    assert sorted(index for batch in found for index in batch) == list(range(len(lengths)))
    in_order = [lengths[index] for batch in found for index in batch]
    assert in_order == sorted(lengths)
    assert all(len(batch) == 1 or len(batch) * max(lengths[index] for index in batch) <= 20 for batch in found)
    assert [len(batch) for batch in found] == [3, 2, 2, 1]


def test_a_missing_head_is_named(finished: Finished, tmp_path: Path) -> None:
    generator = load_model(finished.folder / "generator", "cpu")
    discriminator = load_model(finished.folder / "discriminator", "cpu")
    with pytest.raises(UsageError, match="needs a detection head, and this model has none"):
        generator.replaced_probabilities("owl")
    for ask in (discriminator.fill_mask, discriminator.pseudo_log_likelihood):
        with pytest.raises(UsageError, match="needs a masked-token head, and this model has none"):
            ask("[MASK]")
    assert not torch.equal(generator.features("owl").pooled[:1], discriminator.features("owl").pooled[:1])


def test_features_of_a_run_are_the_discriminators(model: InferenceModel, finished: Finished) -> None:
    alone = load_model(finished.folder / "discriminator", "cpu")
    assert torch.equal(model.features("A quiet owl").pooled, alone.features("A quiet owl").pooled)


@pytest.mark.parametrize("objective", ["rtd", "mlm_sop"])
def test_a_checkpoint_computes_what_is_exported_of_it_bit_for_bit(
    finished: Finished, tmp_path: Path, objective: str
) -> None:
    run = finished.folder
    if objective != "rtd":
        run = tmp_path / "run"
        ended = call(pretrain.main, *finished.options(run, "--objective", objective, "--max_steps", 2))
        assert ended.code == 0, ended.err
    exported, last = load_model(run, "cpu"), load_model(max((run / "checkpoints").glob("step-*")), "cpu")
    ids = torch.arange(5, 25)[None]
    inputs = ids, torch.ones_like(ids), torch.zeros_like(ids)
    assert (exported.discriminator is None) == (last.discriminator is None) == (objective != "rtd")
    for name in ("encoder", "generator", "discriminator"):
        ours, theirs = getattr(exported, name), getattr(last, name)
        if ours is not None:
            assert ours.config == theirs.config
            # Copied: how a file's tensors are aligned in memory may change the last bit of a product.
            one, other = (outputs(copy.deepcopy(model), *inputs) for model in (ours, theirs))
            assert one.keys() == other.keys()
            assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("gone", ["model.safetensors", "MANIFEST.json", "state.json", "a bit", ""])
def test_a_checkpoint_that_is_not_whole_any_more_is_one_line(finished: Finished, tmp_path: Path, gone: str) -> None:
    shutil.copytree(finished.folder / "tokenizer", tmp_path / "tokenizer")
    folder = tmp_path / "checkpoints" / "step-0000010"
    shutil.copytree(finished.folder / "checkpoints" / "step-0000010", folder)
    load_model(folder, "cpu")
    if gone == "a bit":
        weights = bytearray((folder / "model.safetensors").read_bytes())
        weights[-1] ^= 1
        (folder / "model.safetensors").write_bytes(weights)
    else:
        shutil.move(folder / gone, tmp_path / "elsewhere")
    with pytest.raises((UsageError, CheckpointError), match=r"step-0000010") as refused:
        load_model(folder, "cpu")
    assert "LM_DEMO" not in str(refused.value)
