"""electra-albert doctor: a sound run passes, and each planted fault fails the check that is meant
for it.
"""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from electra_albert.apps import doctor
from electra_albert.apps.pretrain import checks, job
from electra_albert.contracts import Term
from electra_albert.model import electra
from electra_albert.objectives import mlm, rtd
from tests.apps.conftest import Finished
from tests.apps.tiny_run import Ended, assert_refused, call, english

ALL_OPTIONS = "--objective rtd_sop --rtd.mlm_share 0.4 --rtd.embedding_sharing disentangled"
Function = Callable[..., Any]


def findings(ended: Ended, status: str) -> set[str]:
    """Names of the checks with that status."""
    return {line[6:20].strip() for line in ended.out.splitlines() if line.startswith(status)}


@pytest.mark.parametrize("more", [ALL_OPTIONS, "--objective electric --optimizer muon"])
def test_a_sound_run_passes_all_checks(finished: Finished, more: str) -> None:
    ended = call(doctor.main, *finished.options(None, *more.split()))
    assert (ended.code, findings(ended, "fail")) == (0, set()), ended.out
    wanted = "weights text fertility padding disk cost learning updates export"
    assert {*wanted.split()} <= findings(ended, "pass")
    # Examples of 32 tokens are short.
    assert ("sentence order" in findings(ended, "warn")) == ("sop" in more)


def test_learning_is_checked_on_examples_with_a_sentence_order(
    finished: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Regression: without one among them, the parameters of its head did not change, which failed.
    monkeypatch.setattr(checks, "_OVERFITTED", 1)
    ended = call(doctor.main, *finished.options(None, "--objective", "mlm_sop"))
    assert "updates" in findings(ended, "pass"), ended.out


def test_learning_is_checked_with_the_learning_rates_of_the_run(
    finished: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    multipliers = set()
    update = checks.TrainingStep.update

    def spy(self: Any) -> None:
        multipliers.update(group["lr_multiplier"] for group in self.optimizer.param_groups)
        update(self)

    monkeypatch.setattr(checks.TrainingStep, "update", spy)
    rates = ("--rtd.generator_rate", 0.5, "--rtd.discriminator_rate", 0.25)
    call(doctor.main, *finished.options(None, *rates))
    assert multipliers == {0.25, 0.5, 1.0}


def summed_loss(terms: Function) -> Function:
    def summed(*given: Any) -> dict[str, Term]:
        return {name: Term(term.sum * 20, term.count) for name, term in terms(*given).items()}

    return summed


def untied(pair: type[electra.Electra]) -> type[electra.Electra]:
    class Untied(pair):  # type: ignore[misc, valid-type]
        def __init__(self, *given: Any, **options: Any) -> None:
            super().__init__(*given, **options)
            self.discriminator.embeddings = copy.deepcopy(self.generator.embeddings)

    return Untied


def exhausted_groups(groups: Function) -> Function:
    return lambda *given: groups(*given)[:1]


def padding_in_the_loss(of_batch: Function) -> Function:
    def terms(self: Any, batch: Any) -> Any:
        return of_batch(self, batch._replace(attention_mask=torch.ones_like(batch.attention_mask)))

    return terms


def no_gradient(logits: Function) -> Function:
    return lambda self, hidden_states: logits(self, hidden_states.detach())


class Fault(NamedTuple):
    """A fault in a function: where it is, what it becomes, with which options, and the check that
    must fail.
    """

    owner: Any
    name: str
    make: Callable[[Any], Any]
    options: str
    check: str


FAULTS = (
    Fault(rtd, "Electra", untied, "", "weights"),
    Fault(job, "parameter_groups", exhausted_groups, "", "weights"),
    Fault(mlm.MaskedLanguageModeling, "forward", padding_in_the_loss, "--objective mlm", "padding"),
    Fault(electra.Generator, "logits", no_gradient, "--objective mlm", "updates"),
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.make.__name__}")
def test_a_planted_fault_fails_its_check(
    finished: Finished, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    monkeypatch.setattr(checks.trial, "measure", lambda *_: ())
    monkeypatch.setattr(fault.owner, fault.name, fault.make(getattr(fault.owner, fault.name)))
    ended = call(doctor.main, *finished.options(None, *fault.options.split()))
    assert ended.code == 1, ended.out
    assert fault.check in findings(ended, "fail"), ended.out


def test_a_loss_that_is_no_mean_is_refused(
    finished: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlm, "prediction_terms", summed_loss(mlm.prediction_terms))
    assert_refused(call(doctor.main, *finished.options(None)), 2, "the initial generator_loss is")


def examine(finished: Finished, text: Path, *more: object) -> Ended:
    """The doctor of a text with the tokenizer of the run."""
    files = ("--corpus", text, "--tokenizer", finished.folder / "tokenizer")
    return call(doctor.main, *finished.options(None, *files, "--objective", "mlm", *more))


def test_a_weak_corpus_gives_warnings(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks.trial, "measure", lambda *_: ())
    text = tmp_path / "text.txt"
    text.write_text(english(60) + "\n\n" + english(60) + "\n\n" + "ωψφ " * 40, encoding="utf-8")
    ended = examine(finished, text, "--max_steps", 2000)
    wanted = {"unknown", "duplicates", "held-out text", "epochs"}
    assert (ended.code, findings(ended, "warn")) == (0, wanted), ended.out


def test_text_that_the_tokenizer_does_not_know_fails(finished: Finished, tmp_path: Path) -> None:
    # Regression: a warning, and another about duplicates, since all unknown sentences are equal.
    text = tmp_path / "text.txt"
    russian = "\n".join(
        f"{'один из нас ' * 3}{number} {number * 7} {number * 11}." for number in range(400)
    )
    text.write_text(russian, encoding="utf-8")
    ended = examine(finished, text)
    assert "unknown" in findings(ended, "fail"), ended.out
    assert "duplicates" in findings(ended, "pass"), ended.out


def test_an_absurd_learning_rate_fails(finished: Finished) -> None:
    # Regression: the timing changed the weights before, and the loss was compared with that of the
    # wrecked ones.
    ended = call(doctor.main, *finished.options(None, "--learning_rate", 3.0))
    assert findings(ended, "fail") >= {"learning"}, ended.out
