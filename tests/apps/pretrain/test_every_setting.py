"""Every setting has an effect: a change of one setting changes the outcome of a tiny run.

A new field needs one line below: another value for it, or the reason why none is tested.
"""

import csv
import json
import shutil
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest

from electra_albert.apps.finetune import main as finetune
from electra_albert.apps.pretrain import main as pretrain
from electra_albert.config.finetuning import DERIVED, FinetuneConfig
from electra_albert.config.pretraining import GROUPS, PretrainConfig
from electra_albert.objectives import OBJECTIVES
from tests.apps import tiny_tasks
from tests.apps.conftest import Finished
from tests.apps.tiny_run import english, options, sha256, succeed, untimed_rows
from tests.tokenization.tokenizer_kinds import PROSE, save_digit_commas


class Outcome(NamedTuple):
    """Results of a run, in the order of comparison."""

    weights: list[str]  # hashes of the exported models
    scores: list[Any]  # rows of metrics, and predictions
    files: list[str]


class To(NamedTuple):
    """Another value, and the first part of the outcome that it changes; {names} are paths."""

    value: object
    shared: tuple[object, ...] = ()  # further options of both runs
    changes: Literal["weights", "scores", "files", "nothing"] = "weights"


Table = Mapping[str, To | str]  # a text is the reason why no other value is tested

MLM = ("--objective", "mlm")
SOP = ("--objective", "rtd_sop", "--max_seq_length", 64)  # long enough for two sentences to swap
DROPOUT = ("--model.hidden_dropout_prob", 0.3, "--model.attention_probs_dropout_prob", 0.3)
DETECTOR = ("--init_from", "{detector}", "--rtd.generator_warmup_steps", 1)  # has no generator


def tried(
    group: str, shared: tuple[object, ...] = (), changes: Any = "weights", **values: object
) -> dict[str, To]:
    """Settings of a group, each by another value."""
    return {f"{group}.{name}": To(value, shared, changes) for name, value in values.items()}


TRAINING: Table = {
    **tried("training", max_steps=2, per_device_train_batch_size=4, gradient_accumulation_steps=2),
    **tried(
        "training",
        learning_rate=0.001,
        warmup_steps=1,
        weight_decay=0.5,
        adam_beta1=0.5,
        adam_beta2=0.5,
    ),
    **tried(
        "training",
        adam_epsilon=0.01,
        optimizer="lamb",
        lr_scheduler_type="linear",
        adam_bias_correction="false",
    ),
    **tried("training", max_grad_norm=0.01, precision="bf16", seed=7),
    "training.muon_rate": To(1, shared=("--optimizer", "muon")),
    "training.per_device_eval_batch_size": "changes the last bits of scores alone",
    "training.gradient_checkpointing": To("true", changes="nothing"),
    "training.logging_steps": To(3, changes="scores"),
    "training.cuda_graphs": "needs CUDA: training/test_gpu_step.py; CPU: training/test_graphs.py",
    "training.ddp_timeout": "of several processes: training/test_distributed.py",
    "training.report_to": "changes no file that is compared: test_monitor.py",
    "training.lr_decay_share": To(1, shared=("--lr_scheduler_type", "wsd", "--warmup_steps", 0)),
}
PRETRAINING: Table = {
    "run.output_dir": To("{folder}/other", changes="files"),
    **tried("run", objective="rtd_sop", dry_run="true", average_checkpoints=2),
    **dict.fromkeys(
        ("run.budget", "run.flops", "training.save_milestones"), "pretrain/test_budget.py"
    ),
    "run.eval_pairs": To("{pairs}", changes="scores"),
    "run.eval_max_pairs": To(1, shared=("--eval_pairs", "{pairs}"), changes="scores"),
    "run.init_from": To("{run}", shared=("--tokenizer", "{run}/tokenizer")),
    "run.old_corpus": To("{tales}", shared=DETECTOR, changes="scores"),
    **dict.fromkeys(("run.language", "run.license"), "are in the cards: test_pretraining.py"),
    **dict.fromkeys(("run.push_to_hub", "run.hub_private_repo"), "uploads: test_push.py"),
    "run.device": "needs a GPU",
    "run.torch_compile": "compiling takes minutes: test_machine.py",
    "run.resume": To("{base}/checkpoints/step-0000002", changes="scores"),
    **tried("corpus", corpus="{tales}", text_column="body", bad_utf8="skip", encoding="cp1252"),
    **tried(
        "corpus",
        tokenizer="{run}/tokenizer",
        vocab_size=150,
        do_lower_case="false",
        keep_accents="true",
    ),
    **tried("corpus", max_seq_length=24),
    "corpus.documents": To("line", shared=("--corpus", "{tales}")),
    "corpus.extend_vocab_to": To(310, shared=("--tokenizer", "{run}/tokenizer")),
    "corpus.split_digit_comma": To("true", shared=("--tokenizer", "{digits}")),
    "corpus.prepared_dir": To("{folder}/elsewhere", changes="files"),
    "corpus.preprocessing_num_workers": To(2, changes="nothing"),
    **TRAINING,
    **tried("training", changes="scores", eval_steps=2, eval_examples=1),
    **tried("training", changes="files", save_steps=2, save_total_limit=1),
    "training.gradient_checkpointing": To("true", shared=DROPOUT, changes="nothing"),
    "model.vocab_size": "is the tokenizer's",
    "model.max_position_embeddings": "is max_seq_length",
    **tried(
        "model",
        embedding_size=24,
        hidden_size=48,
        num_hidden_layers=4,
        num_hidden_groups=2,
        inner_group_num=2,
    ),
    **tried(
        "model",
        num_attention_heads=4,
        intermediate_size=96,
        hidden_act="relu",
        hidden_dropout_prob=0.5,
    ),
    **tried("model", attention_probs_dropout_prob=0.5, type_vocab_size=3),
    **tried("model", initializer_range=0.05, layer_norm_eps=0.01, initialization="local"),
    **tried("model", zero_init_outputs="true"),
    "model.attention": To("nystrom"),
    "model.attention_options": To('{{"window": 2}}', shared=("--model.attention", "local")),
    **tried(
        "rtd",
        mask_rate=0.5,
        mask_token_share=0.2,
        temperature=9,
        generator_weight=3,
        discriminator_weight=3,
    ),
    **tried(
        "rtd", generator_rate=0.5, discriminator_rate=0.5, generator_size=1, generator_layers=2
    ),
    **tried("rtd", embedding_sharing="disentangled", mlm_share=0.5),
    **tried("rtd", ("--rtd.generator_size", 1), generator="shared"),
    "rtd.mlm_weight": To(3, shared=("--rtd.mlm_share", 0.5)),
    "rtd.generator_warmup_steps": To(2, shared=DETECTOR),
    **tried("rtd", mask_unit="word"),
    **tried("mlm", MLM, mask_unit="span"),
    **tried("mlm", MLM, mask_rate=0.5, mask_token_share=0.2, random_token_share=0.2),
    "sop.weight": To(3, shared=SOP),
    "electric.noise_share": To(0.25, shared=("--objective", "electric")),
}

NEW_TEXT = ("--predict", "test", "--test_file", "{tables}/dev.csv")
CUSTOM = (
    "--task",
    "custom",
    "--train_file",
    "{tables}/train.csv",
    "--validation_file",
    "{tables}/dev.csv",
)
PAIRS = (*CUSTOM, "--text_pair_column", "kind")
FEW = ("--max_train_examples", 24, "--max_eval_examples", 24)
ANSWERS = ("--task", "squad", "--data_dir", "{tasks}/squad", "--classifier_dropout_prob", 0, *FEW)
# No evaluation is better than the one before.
WORSE = ("--learning_rate", 1e-12, "--evals_per_epoch", 3)
FINETUNING: Table = {
    "data.task": "is what the other options belong to; finetune/test_learning.py trains every kind",
    "data.data_dir": To(
        "{tasks}/other/RTE", shared=("--task", "rte", "--data_dir", "{tasks}/RTE", *FEW)
    ),
    **tried(
        "data",
        train_file="{tables}/dev.csv",
        text_column="kind",
        text_pair_column="kind",
        label_column="kind",
    ),
    **tried("data", encoding="cp1252", max_train_examples=16),
    **tried("data", changes="scores", validation_file="{tables}/train.csv", max_eval_examples=5),
    "data.test_file": To("{tables}/train.csv", shared=(*CUSTOM, *NEW_TEXT), changes="scores"),
    "data.column_names": To("text,sort,label,number"),  # so that the header is one more row
    "data.unknown_labels": "decides on rows that are refused otherwise: test_reading_rows.py",
    "data.validation_split": To(0.5, shared=(*CUSTOM[:4], "--validation_split", 0.3)),
    "data.regression": To("true", shared=(*CUSTOM, "--label_column", "number")),
    "data.race_level": To("middle", shared=("--task", "race", "--data_dir", "{tasks}/RACE", *FEW)),
    "data.prepared_dir": "belongs to the task that is made of the documentation",
    "data.streaming": "gives the same examples: tasks/test_hub_tasks.py",
    **tried(
        "tuning", model="{run}/generator", from_scratch="true", head="electra", recipe="albert"
    ),
    **tried(
        "tuning", num_train_epochs=2, max_steps=2, warmup_ratio=0.9, warmup_steps=3, layer_decay=0.3
    ),
    **tried("tuning", max_seq_length=9, classifier_dropout_prob=0.7, hidden_dropout_prob=0.7),
    **tried("tuning", attention_probs_dropout_prob=0.7, class_weights="balanced"),
    **tried("tuning", dry_run="true", num_hidden_layers=3),
    "tuning.output_dir": To("{folder}/other", changes="files"),
    "tuning.from_mnli": To("true", shared=("--task", "glue", "--data_dir", "{tasks}/GLUE", *FEW)),
    "tuning.doc_stride": To(4, shared=(*ANSWERS, "--max_answer_length", 3)),
    "tuning.max_answer_length": To(1, shared=ANSWERS),
    "tuning.double_unordered": To("true", shared=PAIRS),
    "tuning.seeds": "adds seeds, the best of which is exported: finetune/test_sweep.py",
    "tuning.metric_for_best_model": "decides between seeds: finetune/test_own_tables.py",
    **tried("tuning", changes="scores", evals_per_epoch=3, predict="{tables}/train.csv"),
    "tuning.early_stopping_patience": To(1, shared=(*CUSTOM, *WORSE)),
    "tuning.compare": "trains nothing: finetune/test_sweep.py",
    **dict.fromkeys(("tuning.push_to_hub", "tuning.hub_private_repo"), "uploads: test_push.py"),
    "tuning.device": "needs a GPU",
    "tuning.resume": "never refuses what auto continues: finetune/test_sweep.py",
    **{name: entry for name, entry in TRAINING.items() if name.split(".")[1] not in DERIVED},
    "training.lr_scheduler_type": To("linear", shared=("--warmup_steps", 2)),
}

TABLES: dict[Any, Table] = {pretrain: PRETRAINING, finetune: FINETUNING}


def names(config: object) -> set[str]:
    sections = [
        (section.name, section.default_factory)
        for section in fields(config)
        if is_dataclass(section.default_factory)
    ]
    return {f"{name}.{field.name}" for name, section in sections for field in fields(section)}


def test_every_field_is_in_the_table() -> None:
    groups = {group: kind for spec in OBJECTIVES.values() for group, kind in spec.options.items()}
    options = {f"{group}.{field.name}" for group, kind in groups.items() for field in fields(kind)}
    assert names(PretrainConfig()) | options == PRETRAINING.keys()
    assert names(FinetuneConfig()) - {f"training.{name}" for name in DERIVED} == FINETUNING.keys()


@pytest.fixture(scope="module")
def paths(finished: Finished, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A corpus that changes with every reading option, tasks, and the other paths of the tables."""
    folder = tmp_path_factory.mktemp("paths")
    corpus, tables, tasks = (folder / name for name in ("corpus", "tables", "tasks"))
    for each in (corpus, tables, tasks):
        each.mkdir()
    text = (english(100) + "\n".join(PROSE)).replace("lamp", "Café").replace("letter", "1,912, 19,")
    (corpus / "a.txt").write_bytes(text.encode() + b"\nThe owl lost \xff a key.\n")
    lines = ({"text": one, "body": other} for one, other in pairwise(PROSE))
    (corpus / "b.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8"
    )
    save_digit_commas(folder / "digits")
    shutil.copytree(finished.folder / "discriminator", folder / "detector")
    for number, name in enumerate(("train", "dev")):
        with (tables / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerow(("text", "kind", "label", "number"))
            for row, story in enumerate(tiny_tasks.stories(24 - number, number)):
                csv.writer(file).writerow(
                    (story.text.replace("river", "rivér"), story.kind, story.place, row)
                )
    (folder / "pairs").mkdir()
    stories = [story.text for story in tiny_tasks.stories(24, 3)]
    pairs = (
        {"sentence_good": text, "sentence_bad": " ".join(reversed(text.split()))}
        for text in stories
    )
    (folder / "pairs" / "order.jsonl").write_text(
        "\n".join(map(json.dumps, pairs)), encoding="utf-8"
    )
    for make in (tiny_tasks.rte, tiny_tasks.squad, tiny_tasks.race):
        make(tasks)
    for make in (tiny_tasks.rte, tiny_tasks.mnli):
        make(tasks / "GLUE")
    other = shutil.copytree(tasks / "RTE", tasks / "other" / "RTE") / "train.tsv"
    other.write_text(
        other.read_text(encoding="utf-8").replace("the river", "the garden"), encoding="utf-8"
    )
    known = {"run": finished.folder, "tales": finished.corpus, "prepared": folder / "prepared"}
    return {**known, **{path.name: path for path in folder.iterdir()}}


def outcome(folder: Path) -> Outcome:
    exported = [
        path
        for path in sorted(folder.rglob("model.safetensors"))
        if "checkpoints" not in path.parts
    ]
    scores: list[Any] = [
        untimed_rows(path.parent) for path in sorted(folder.rglob("metrics.jsonl"))
    ]
    scores += [path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.tsv"))]
    files = [
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if "tensorboard" not in path.parts
    ]
    return Outcome([sha256(path) for path in exported], scores, sorted(files))


def train(app: Any, folder: Path, paths: Mapping[str, Path], *more: object) -> Outcome:
    """Train three steps in `folder`/run with some options."""
    known = {**paths, "folder": folder}
    words = [word.format(**known) if isinstance(word, str) else word for word in more]
    if app is pretrain:
        steps = ("--max_steps", 3, "--save_steps", 1, "--save_total_limit", 9, "--eval_steps", 3)
        rest = ("--warmup_steps", 2, "--logging_steps", 1, *words)
        argv = options(paths["corpus"], paths["prepared"], folder / "run", *steps, *rest)
    else:
        argv = ["--output_dir", folder / "run", "--model", paths["run"], "--max_seq_length", 32]
        argv += ["--num_train_epochs", 1, "--per_device_train_batch_size", 8, "--logging_steps", 1]
        argv += ["--precision", "fp32", "--device", "cpu", *words]
    succeed(app.main, *argv)
    return outcome(folder)


@pytest.fixture(scope="module")
def bases() -> dict[tuple[object, ...], tuple[Path, Outcome]]:
    """Cache of the reference runs, by their options."""
    return {}


@pytest.mark.parametrize(
    ("app", "name"),
    [
        (app, name)
        for app, table in TABLES.items()
        for name, entry in table.items()
        if isinstance(entry, To)
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__.rpartition(".")[2],
)
def test_another_value_changes_the_expected_part_of_the_outcome(
    app: Any,
    name: str,
    paths: dict[str, Path],
    bases: dict[Any, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    entry, (section, field) = TABLES[app][name], name.split(".")
    assert isinstance(entry, To)
    shared = (
        entry.shared if app is pretrain or "--task" in entry.shared else (*CUSTOM, *entry.shared)
    )
    if (app, shared) not in bases:
        folder = tmp_path_factory.mktemp("base")
        bases[app, shared] = folder / "run", train(app, folder, paths, *shared)
    base, before = bases[app, shared]
    option = f"--{name if section in (*GROUPS, 'electric') else field}"
    after = train(
        app,
        tmp_path_factory.mktemp("changed"),
        {**paths, "base": base},
        *shared,
        option,
        entry.value,
    )
    changed = [part for part in Outcome._fields if getattr(before, part) != getattr(after, part)]
    assert (changed or ["nothing"])[0] == entry.changes
