"""The rows that describe the tasks agree with one another and are found under their usual names."""

import pytest

from electra_albert.contracts import UsageError
from electra_albert.finetuning_config import DataConfig
from electra_albert.tasks.registry import ELECTRA_EIGHT, GLUE, TASKS, as_configured, find_task


def test_every_task_agrees_with_itself() -> None:
    for name, task in TASKS.items():
        assert find_task(name) is task
        assert task.main in task.metrics, name
        assert set(task.label_aliases.values()) <= set(task.labels), name
        assert set(task.submission) == set(task.files.test), name
        assert task.hub is None or set(task.hub.evaluation) <= set(task.files.evaluation), name
        assert task.hub is None or set(task.hub.test) <= set(task.files.test), name
        assert not (task.is_regression and task.labels), name


def test_metrics_are_those_of_glue_and_of_electra() -> None:
    official = {name: set(TASKS[name].metrics) for name in GLUE}
    assert official["cola"] == {"matthews_correlation"}
    assert official["stsb"] == {"pearson", "spearman"}
    assert official["mrpc"] == official["qqp"] == {"accuracy", "f1"}
    main = {name: TASKS[name].main for name in ELECTRA_EIGHT}
    assert main.pop("cola") == "matthews_correlation"
    assert main.pop("stsb") == "spearman"
    assert set(main.values()) == {"accuracy"}
    assert set(GLUE) - set(ELECTRA_EIGHT) == {"wnli", "ax"}


def test_label_numbers_are_those_of_googles_code() -> None:
    assert TASKS["mnli"].labels == TASKS["ax"].labels == ("contradiction", "entailment", "neutral")
    assert TASKS["qnli"].labels == TASKS["rte"].labels == ("entailment", "not_entailment")


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("SST-2", "sst2"),
        ("STS-B", "stsb"),
        ("CoLA", "cola"),
        ("squad1.1", "squad"),
        ("SQuAD2.0", "squad_v2"),
        ("conll2003", "ner"),
        ("chunk", "chunking"),
        ("glue/mnli", "mnli"),
        ("glue_ax", "ax"),
    ],
)
def test_usual_spellings_are_found(spelling: str, name: str) -> None:
    assert find_task(spelling).name == name


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mnil", "did you mean mnli"),
        ("poetry", "there are cola .* and glue"),
        ("GLUE", "did you mean glue"),
        ("glue", "one task"),
        ("RACE-middle", "--race_level middle"),
    ],
)
def test_what_is_nearly_a_task_is_answered_with_what_would_do(name: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        find_task(name)


CLASSES = """
cola unacceptable 0 | cola acceptable 1
sst2 negative 0 | sst2 positive 1
mrpc not_equivalent 0 | mrpc equivalent 1
qqp not_duplicate 0 | qqp duplicate 1
mnli contradiction 0 | mnli entailment 1 | mnli neutral 2
qnli entailment 0 | qnli not_entailment 1
rte entailment 0 | rte not_entailment 1
wnli not_entailment 0 | wnli entailment 1
ax contradiction 0 | ax entailment 1 | ax neutral 2
"""


def test_each_class_of_glue_as_the_hub_names_it_has_its_number() -> None:
    wanted = {
        (task, name): int(number) for task, name, number in map(str.split, CLASSES.replace("|", "\n").split("\n")[1:-1])
    }
    found = {
        (name, spelled): task.labels.index(task.label_aliases.get(spelled, spelled))
        for name, task in ((name, TASKS[name]) for name in GLUE)
        for spelled in task.label_aliases or task.labels
    }
    assert found == wanted


def test_options_change_columns_and_make_a_regression() -> None:
    config = DataConfig(text_column="a", text_pair_column="b", label_column="c", regression=True)
    task = as_configured(TASKS["custom"], config)
    assert (task.columns.text, task.columns.pair, task.columns.label) == (("a",), ("b",), ("c",))
    assert task.is_regression
    assert task.main == "spearman"
    assert as_configured(task, config) == task
    assert as_configured(TASKS["ner"], DataConfig(label_column="2")).tag_column == 2


def test_options_that_do_not_fit_the_task_are_refused() -> None:
    with pytest.raises(UsageError, match="cola has classes"):
        as_configured(TASKS["cola"], DataConfig(regression=True))
    with pytest.raises(UsageError, match="cola has one text"):
        as_configured(TASKS["cola"], DataConfig(text_pair_column="b"))
