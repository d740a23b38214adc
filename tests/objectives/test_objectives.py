"""Laws 2 to 6 of every pretraining objective, and the terms of sentence-order prediction."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from electra_albert.config.objectives import SopConfig
from electra_albert.contracts import IGNORED_LABEL, Batch, Term
from electra_albert.keyed_random import Stream, bits
from electra_albert.objectives import OBJECTIVES as BUILT
from electra_albert.objectives import masking
from electra_albert.objectives.evaluation import Detections, Unigram
from electra_albert.objectives.mlm import order_terms
from electra_albert.objectives.rtd import PretrainingModule
from electra_albert.training.optimizer import check_gradients, check_groups, parameter_groups
from tests.objectives import toy
from tests.objectives.toy import MODEL, OBJECTIVES, SPECIAL, build, make_batch, ordered

# Wide enough, and with enough tokens, for first losses as in a real run.
START = replace(
    MODEL,
    vocab_size=1009,
    embedding_size=64,
    hidden_size=128,
    num_hidden_layers=3,
    intermediate_size=256,
)
WITH_ORDER = ("rtd_sop", "mlm_sop")


def total(
    objective: PretrainingModule, terms: dict[str, Term], counts: dict[str, int] | None = None
) -> Tensor:
    """The weighted sum of the losses, each divided by its count if counts are given."""
    scales = {
        name: weight / counts[name] if counts else weight
        for name, weight in objective.weights.items()
    }
    return torch.stack([scale * terms[name].sum for name, scale in scales.items()]).sum()


def gradients(
    objective: PretrainingModule, batches: list[Batch], counts: dict[str, int]
) -> dict[str, Tensor]:
    """Gradients of the total over `batches`, each term divided by its count over all of them."""
    objective.zero_grad()
    for batch in batches:
        total(objective, objective(batch), counts).backward()
    return {name: p.grad.clone() for name, p in objective.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_terms_are_float32_sums_and_int64_counts_equal_to_those_on_the_host(name: str) -> None:
    assert set(BUILT) == {name.partition(" ")[0] for name in OBJECTIVES}
    batch = ordered(make_batch(lengths=(23, 17, 9, 5, 3)))
    for rate in (0.15, 0.5):
        objective = build(name, mask_rate=rate)
        with torch.autocast("cpu", torch.bfloat16, enabled=rate == 0.5):
            terms = objective(batch)
        counts = objective.counts(batch)
        assert counts == {term: int(terms[term].count) for term in objective.weights}
        for value in terms.values():
            assert value.sum.dtype == torch.float32
            assert value.count.dtype == torch.int64
            assert value.sum.shape == value.count.shape == ()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_micro_batches_give_the_gradient_of_one_large_batch(name: str) -> None:
    # Parts with different counts, the second without sentence order. Float64 parameters; losses are
    # summed in float32, with a relative error of 6e-8 per number.
    objective = build(name).double()
    batch = ordered(make_batch())
    counts = objective.counts(batch)
    parts = [toy.select(batch, torch.tensor(index)) for index in ([0, 2, 3], [1], [4])]
    whole = gradients(objective, [batch], counts)
    summed = gradients(objective, parts, counts)
    norm = torch.stack([gradient.norm() for gradient in whole.values()]).norm()
    assert all((summed[name] - gradient).norm() <= 1e-6 * norm for name, gradient in whole.items())


@pytest.mark.parametrize("name", OBJECTIVES)
def test_losses_start_at_chance_level(name: str) -> None:
    shape = replace(START, initialization="local" if name == "rtd_sop" else "normal")
    objective = build(name, shape, mask_rate=0.15)
    batch = ordered(make_batch(lengths=(61, 50, 61, 33, 61, 61), length=61, vocab=START.vocab_size))
    terms = objective(batch)
    losses = {
        term: float(terms[term].sum.detach() / terms[term].count) for term in objective.weights
    }
    assert losses.keys() == objective.chance_level.keys() == objective.weights.keys()
    for term, loss in losses.items():
        # Logits with standard deviation s add s * s / 2 to a loss on average; both orders are
        # equally frequent.
        assert loss == pytest.approx(objective.chance_level[term], rel=0.05), term


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_parameter_has_a_gradient_after_one_step_and_is_in_one_group(name: str) -> None:
    objective = build(name)
    check_groups(objective, parameter_groups(objective, 0.01))
    parameters = {parameter for parameter, _ in objective.named_parameters(remove_duplicate=False)}
    assert objective.state_dict().keys() == parameters
    assert any("pooler" in parameter for parameter in parameters) == (name in WITH_ORDER)
    total(objective, objective(ordered(make_batch()))).backward()
    check_gradients(objective)


@pytest.mark.parametrize("name", WITH_ORDER)
def test_a_batch_without_sentence_order_has_count_zero_and_zero_gradients(name: str) -> None:
    objective = build(name)
    batch = make_batch()
    terms = objective(batch)
    for term in ("sop_loss", "sop_accuracy", "swapped_fraction"):
        assert float(terms[term].sum.detach()) == 0.0
        assert int(terms[term].count) == 0
    total(objective, terms).backward()
    check_gradients(objective)
    for parameter, value in objective.named_parameters():
        assert "sentence_order" not in parameter or not value.grad.any()


def assert_corruption_does_not_depend_on_the_batch(
    objective: PretrainingModule, batch: Batch
) -> None:
    """Assert that examples are corrupted equally in any order and alone."""
    whole = objective.corrupt(batch)
    for index in (torch.tensor([4, 2, 0, 3, 1]), torch.tensor([2])):
        part = objective.corrupt(toy.select(batch, index))
        for name in ("masked_ids", "is_masked", "corrupted_ids", "is_replaced"):
            if hasattr(whole, name):
                assert torch.equal(getattr(part, name), getattr(whole, name)[index]), name


@pytest.mark.parametrize("name", OBJECTIVES)
def test_draws_are_keyed_by_the_example_not_by_the_index_in_the_batch(name: str) -> None:
    # Float64, so that rounding, which depends on the batch, does not change a sample.
    objective = build(name).double()
    batch = make_batch()
    assert_corruption_does_not_depend_on_the_batch(objective, batch)
    torch.rand(7)  # torch's global generator must not matter
    again = objective.corrupt(batch).masked_ids
    assert torch.equal(again, objective.corrupt(batch).masked_ids)
    later = batch._replace(example_id=batch.example_id + 10_000)
    assert not torch.equal(again, objective.corrupt(later).masked_ids)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_padding_changes_no_term(name: str) -> None:
    objective = build(name)
    batch = ordered(make_batch())
    ids = batch.input_ids.masked_fill(~batch.attention_mask, 9)
    types = batch.token_type_ids.masked_fill(~batch.attention_mask, 1)
    terms = objective(batch)
    other = objective(batch._replace(input_ids=ids, token_type_ids=types))
    assert all(
        torch.equal(*pair) for term in terms for pair in zip(terms[term], other[term], strict=True)
    )


@pytest.mark.parametrize("name", OBJECTIVES)
def test_score_returns_the_training_terms_and_the_baselines(name: str) -> None:
    objective = build(name)
    batch = ordered(make_batch())
    detections = Detections()
    unigram = Unigram.from_counts(np.arange(MODEL.vocab_size), SPECIAL.never_masked)
    with torch.no_grad():
        scored = objective.score(batch, unigram, detections)
        terms = objective(batch)
    assert scored.keys() == terms.keys() | {"most_frequent_accuracy", "unigram_loss"}
    assert all(torch.equal(scored[term].sum, terms[term].sum) for term in terms)
    scores, is_replaced = detections.arrays()
    expected = terms["replaced_fraction"] if name.startswith("rtd") else (0, 0)
    assert (int(is_replaced.sum()), len(scores)) == tuple(map(int, expected))


def test_order_terms_of_known_logits() -> None:
    batch = make_batch()._replace(sentence_order_label=torch.tensor([1, 1, IGNORED_LABEL, 0, 1]))
    logits = torch.tensor([[-3.0, 3.0]] * 4 + [[3.0, -3.0]])  # four times swapped, once in order
    states = torch.zeros(5, 23, 3)
    terms = order_terms(lambda _: logits, states, batch)  # type: ignore[arg-type]
    assert {name: int(term.count) for name, term in terms.items()} == dict.fromkeys(terms, 4)
    assert float(terms["sop_loss"].sum) == pytest.approx(
        2 * math.log1p(math.exp(-6)) + 2 * math.log1p(math.exp(6))
    )
    assert float(terms["sop_accuracy"].sum) == 2
    assert float(terms["swapped_fraction"].sum) == 3  # label 1 means swapped


def test_order_is_predicted_from_the_corrupted_text_and_trains_the_discriminator_alone() -> None:
    batch = ordered(make_batch())
    objective = toy.make_objective(sop=SopConfig())
    with torch.no_grad():
        for parameter in objective.parameters():
            parameter.mul_(5)  # so that another token changes the loss by more than the tolerance
    model = objective.discriminator
    loss = objective(batch)["sop_loss"].sum
    ids = objective.corrupt(batch).corrupted_ids
    states = model.encode(ids, batch.attention_mask, batch.token_type_ids)
    expected = order_terms(model.sentence_order, states, batch)["sop_loss"].sum
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    loss.backward()
    assert all(parameter.grad is None for parameter in objective.generator.encoder.parameters())
    assert all(parameter.grad is not None for parameter in model.encoder.parameters())


def test_every_draw_is_keyed_by_the_seed_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = set()

    def spied(seed: int, stream: Stream, *key: Tensor) -> Tensor:
        drawn.add((seed, stream.name))
        return bits(seed, stream, *key)

    monkeypatch.setattr(masking, "bits", spied)
    for name in OBJECTIVES:
        build(name, mask_unit="span").corrupt(make_batch())
    streams = "MASK MASK_KIND RANDOM_TOKEN RUN_LENGTH SAMPLE_BLOCK SAMPLE_TOKEN"
    assert drawn == {(toy.SEED, stream) for stream in streams.split()}
