"""Task definitions are consistent and are found under their usual names."""

from dataclasses import replace

from electra_albert.config.finetuning import DataConfig
from electra_albert.tasks.registry import ELECTRA_EIGHT, GLUE, TASKS, as_configured, find_task
from tests.refusals import assert_refused


def test_every_task_is_consistent() -> None:
    for name, task in TASKS.items():
        assert find_task(name) is task
        assert task.main in task.metrics, name
        assert set(task.label_aliases.values()) <= set(task.labels), name
        assert task.hub is None or set(task.hub.evaluation) <= set(task.files.evaluation), name
        assert task.hub is None or set(task.hub.test) <= set(task.files.test), name
        assert not (task.is_regression and task.labels), name


def test_metrics_are_those_of_glue_and_of_electra() -> None:
    official = {name: set(TASKS[name].metrics) for name in GLUE}
    assert official["cola"] == {"matthews_correlation"}
    assert official["stsb"] == {"pearson", "spearman"}
    assert official["mrpc"] == official["qqp"] == {"accuracy", "f1"}
    main = {name: TASKS[name].main for name in ELECTRA_EIGHT}
    assert (main.pop("cola"), main.pop("stsb")) == ("matthews_correlation", "spearman")
    assert set(main.values()) == {"accuracy"}
    assert set(GLUE) - set(ELECTRA_EIGHT) == {"wnli", "ax"}


def test_usual_spellings_are_found() -> None:
    spellings = {
        "SST-2": "sst2",
        "squad1.1": "squad",
        "SQuAD2.0": "squad_v2",
        "conll2003": "ner",
        "glue/mnli": "mnli",
    }
    assert {spelling: find_task(spelling).name for spelling in spellings} == spellings


def test_unknown_task_names_are_refused_with_a_suggestion() -> None:
    words = {"mnil": "mean mnli", "poetry": "glue", "glue": "one task", "RACE-mid": "--race_level"}
    for name, word in words.items():
        assert_refused("UsageError", word, find_task, name)


# As the hub names them, in the order of Google's code.
CLASSES = {
    "cola": "unacceptable acceptable",
    "sst2": "negative positive",
    "mrpc": "not_equivalent equivalent",
}
CLASSES |= {"qqp": "not_duplicate duplicate", "wnli": "not_entailment entailment"}
CLASSES |= dict.fromkeys(("qnli", "rte"), "entailment not_entailment")
CLASSES |= dict.fromkeys(("mnli", "ax"), "contradiction entailment neutral")


def test_each_class_name_of_the_hub_has_its_id_in_glue() -> None:
    for name, classes in CLASSES.items():
        task = TASKS[name]
        assert set(task.label_aliases or task.labels) == set(classes.split()), name
        for number, spelled in enumerate(classes.split()):
            assert task.labels.index(task.label_aliases.get(spelled, spelled)) == number, (
                name,
                spelled,
            )
    assert CLASSES.keys() == set(GLUE) - {"stsb"}


def test_options_set_columns_and_regression() -> None:
    config = DataConfig(text_column="a", text_pair_column="b", label_column="c", regression=True)
    task = as_configured(TASKS["custom"], config)
    assert (task.columns.text, task.columns.pair, task.columns.label) == (("a",), ("b",), ("c",))
    assert (task.is_regression, task.main) == (True, "spearman")
    assert as_configured(task, config) == task
    assert as_configured(TASKS["ner"], DataConfig(label_column="2")) == replace(
        TASKS["ner"], tag_column=2
    )
    assert as_configured(TASKS["custom"], DataConfig(label_column="2")).columns.label == ("2",)
    assert as_configured(TASKS["cola"], DataConfig(regression=False)) == TASKS["cola"]
    assert as_configured(TASKS["stsb"], DataConfig(regression=True)) == TASKS["stsb"]


def test_an_option_that_contradicts_the_task_is_refused() -> None:
    of_model = replace(TASKS["custom"], is_regression=True)
    cases = [(TASKS["cola"], True), (TASKS["stsb"], False), (of_model, False)]
    for task, regression in cases:
        config = DataConfig(regression=regression)
        option = f"--regression {str(regression).lower()}: {task.name}"
        assert_refused("UsageError", option, as_configured, task, config)
    pair = DataConfig(text_pair_column="b")
    option = "--text_pair_column b: cola"
    assert_refused("UsageError", option, as_configured, TASKS["cola"], pair)
