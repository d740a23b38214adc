"""Task definitions are consistent and are found under their usual names."""

from dataclasses import replace

import yaml

from electra_albert.config.finetuning import DataConfig
from electra_albert.tasks.registry import (
    ELECTRA_EIGHT,
    GLUE,
    TASKS,
    as_configured,
    find_task,
    has_official_evaluation,
)
from electra_albert.tasks.task import Hub
from tests.refusals import assert_refused, rows


def test_every_task_is_consistent() -> None:
    for name, task in TASKS.items():
        assert find_task(name) is task
        assert task.main in task.metrics, name
        assert set(task.label_aliases.values()) <= set(task.labels), name
        for hub in filter(None, [task.hub]):
            assert hub.evaluation.keys() <= task.files.evaluation.keys(), name
            assert hub.test.keys() <= task.files.test.keys(), name


def test_metrics_are_those_of_glue_and_of_electra() -> None:
    official = {name: " ".join(sorted(TASKS[name].metrics)) for name in GLUE}
    assert official["cola"] == "matthews_correlation"
    assert official["stsb"] == "pearson spearman"
    assert official["mrpc"] == official["qqp"] == "accuracy f1"
    special = {"cola": "matthews_correlation", "stsb": "spearman"}
    for name in ELECTRA_EIGHT:
        assert TASKS[name].main == special.get(name, "accuracy")
    assert set(GLUE) - set(ELECTRA_EIGHT) == {"wnli", "ax"}


def test_usual_spellings_are_found() -> None:
    spellings = "SST-2 squad1.1 SQuAD2.0 conll2003 glue/mnli"
    names = [find_task(spelling).name for spelling in spellings.split()]
    assert names == ["sst2", "squad", "squad_v2", "ner", "mnli"]


def test_unknown_task_names_are_refused_with_a_suggestion() -> None:
    words = {"mnil": "mean mnli", "poetry": "glue", "glue": "one task", "RACE-mid": "--race_level"}
    for name, word in words.items():
        assert_refused("UsageError", word, find_task, name)


CLASSES = """
cola         | unacceptable acceptable
sst2         | negative positive
mrpc         | not_equivalent equivalent
qqp          | not_duplicate duplicate
wnli         | not_entailment entailment
qnli rte     | entailment not_entailment
mnli ax      | contradiction entailment neutral
"""


def test_each_class_name_of_the_hub_has_its_id_in_glue() -> None:
    seen = {"stsb"}
    for names, classes in rows(CLASSES):
        seen.update(names.split())
        for task in map(find_task, names.split()):
            aliases = dict(zip(task.labels, task.labels, strict=True)) | task.label_aliases
            ids = [task.labels.index(aliases[spelled]) for spelled in classes.split()]
            assert ids == [*range(len(task.labels))], task.name
    assert seen == set(GLUE)


def test_options_set_columns_and_regression() -> None:
    custom, ner = TASKS["custom"], TASKS["ner"]
    config = DataConfig(text_column="a", text_pair_column="b", label_column="c", regression=True)
    task = as_configured(custom, config)
    assert (task.columns.text, task.columns.pair, task.columns.label) == (("a",), ("b",), ("c",))
    assert (task.is_regression, task.main) == (True, "spearman")
    assert as_configured(task, config) == task
    second = DataConfig(label_column="2")
    assert as_configured(ner, second) == replace(ner, tag_column=2)
    assert as_configured(custom, second).columns.label == ("2",)
    for name, regression in (("cola", False), ("stsb", True)):
        assert as_configured(TASKS[name], DataConfig(regression=regression)) == TASKS[name]


def test_an_option_that_contradicts_the_task_is_refused() -> None:
    of_model = replace(TASKS["custom"], is_regression=True)
    cases = (
        (TASKS["cola"], DataConfig(regression=True), "--regression true: cola"),
        (TASKS["stsb"], DataConfig(regression=False), "--regression false: stsb"),
        (of_model, DataConfig(regression=False), "--regression false: custom"),
        (TASKS["cola"], DataConfig(text_pair_column="b"), "--text_pair_column b: cola"),
    )
    for task, config, option in cases:
        assert_refused("UsageError", option, as_configured, task, config)


# Scores on these data are not those of the dataset.
OTHER_DATA = """
data_dir: owner/other
data_dir: nyu-mll/glue:rte
race_level: middle
max_eval_examples: 9
"""


def test_scores_of_other_data_are_not_those_of_the_dataset() -> None:
    hub = Hub("nyu-mll/glue", "sst2")
    for own in (None, "nyu-mll/glue", "nyu-mll/glue:sst2", "."):
        assert has_official_evaluation(hub, DataConfig(data_dir=own))
    for line in OTHER_DATA.split("\n")[1:-1]:
        assert not has_official_evaluation(hub, DataConfig(**yaml.safe_load(line)))
