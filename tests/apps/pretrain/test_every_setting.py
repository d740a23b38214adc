"""Every setting has an effect: a change of one setting changes the outcome of a tiny run.

A new field needs one line below: another value for it, or the reason why none is tested.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from shlex import quote, split
from typing import Any, NamedTuple

import pytest

from electra_albert.apps.finetune import main as finetune
from electra_albert.apps.pretrain import main as pretrain
from electra_albert.apps.run_folder import METRICS
from electra_albert.config.finetuning import DERIVED, FinetuneConfig
from electra_albert.config.pretraining import GROUPS, PretrainConfig
from electra_albert.objectives import OBJECTIVES
from tests.apps import tiny_run, tiny_tasks
from tests.apps.conftest import Finished
from tests.apps.tiny_run import english, sha256, succeed, untimed_rows
from tests.refusals import rows
from tests.tokenization.tokenizer_kinds import PROSE, save_digit_commas

Runs = Callable[..., tuple[Path, "Outcome"]]  # of an app, options and the folder of another run


class Outcome(NamedTuple):
    """Results of a run, in the order of comparison."""

    weights: list[str]  # hashes of the exported models
    scores: list[Any]  # rows of metrics, and predictions
    files: list[str]


class To(NamedTuple):
    """Another value, the first part of the outcome that it changes, and further options of both
    runs; {names} are paths.

    Without `changes` the value is the reason why no other one is tested.
    """

    value: str
    changes: str = ""
    shared: str = ""


def table(text: str) -> dict[str, To]:
    """The settings of a table by name; a later row replaces an earlier one."""
    return {name: To(*cells) for name, *cells in rows(text)}


TRAINING = """
training.max_steps | 2 | weights
training.per_device_train_batch_size | 4 | weights
training.gradient_accumulation_steps | 2 | weights
training.learning_rate | 0.001 | weights
training.warmup_steps | 1 | weights
training.weight_decay | 0.5 | weights
training.adam_beta1 | 0.5 | weights
training.adam_beta2 | 0.5 | weights
training.adam_epsilon | 0.01 | weights
training.optimizer | muon | weights
training.lr_scheduler_type | linear | weights
training.max_grad_norm | 0.01 | weights
training.precision | bf16 | weights
training.seed | 7 | weights
training.muon_rate | 1 | weights | --optimizer muon
training.per_device_eval_batch_size | changes the last bits of scores alone
training.gradient_checkpointing | true | nothing
training.logging_steps | 3 | scores
training.cuda_graphs | needs CUDA: training/test_gpu_step.py; CPU: training/test_graphs.py
training.ddp_timeout | of several processes: training/test_distributed.py
training.report_to | changes no file that is compared: test_monitor.py
training.lr_decay_share | 1 | weights | --lr_scheduler_type wsd --warmup_steps 0
"""
# The rows with --objective rtd_sop are long enough for two sentences to swap; {detector} has no
# generator.
PRETRAINING = table(
    TRAINING
    + """\
run.output_dir | {folder}/other | files
run.objective | electric | weights
run.dry_run | true | weights
run.budget | pretrain/test_budget.py
run.flops | pretrain/test_budget.py
training.save_milestones | pretrain/test_budget.py
run.eval_pairs | {pairs} | scores
run.eval_max_pairs | 1 | scores | --eval_pairs {pairs}
run.init_from | {run} | weights | --tokenizer {run}/tokenizer
run.old_corpus | {tales} | scores | --init_from {detector} --rtd.generator_warmup_steps 1
run.language | is in the cards: test_pretraining.py
run.license | is in the cards: test_pretraining.py
run.push_to_hub | uploads: test_push.py
run.hub_private_repo | uploads: test_push.py
run.device | needs a GPU
run.torch_compile | compiling takes minutes: test_machine.py
run.resume | {base}/checkpoints/step-0000002 | scores
corpus.corpus | {tales} | weights
corpus.text_column | body | weights
corpus.bad_utf8 | skip | weights
corpus.encoding | cp1252 | weights
corpus.tokenizer | {run}/tokenizer | weights
corpus.vocab_size | 150 | weights
corpus.do_lower_case | false | weights
corpus.keep_accents | true | weights
corpus.max_seq_length | 24 | weights
corpus.documents | line | weights | --corpus {tales}
corpus.extend_vocab_to | 310 | weights | --tokenizer {run}/tokenizer
corpus.split_digit_comma | true | weights | --tokenizer {digits}
corpus.prepared_dir | {folder}/elsewhere | files
corpus.preprocessing_num_workers | 2 | nothing
training.eval_steps | 2 | scores
training.eval_examples | 1 | scores
training.save_steps | 2 | files
training.save_total_limit | 1 | files
training.gradient_checkpointing | true | nothing | --model.hidden_dropout_prob 0.3
model.vocab_size | is the tokenizer's
model.max_position_embeddings | is max_seq_length
model.embedding_size | 24 | weights
model.hidden_size | 48 | weights
model.num_hidden_layers | 4 | weights
model.num_hidden_groups | 2 | weights
model.inner_group_num | 2 | weights
model.num_attention_heads | 4 | weights
model.intermediate_size | 96 | weights
model.hidden_act | relu | weights
model.hidden_dropout_prob | 0.5 | weights
model.attention_probs_dropout_prob | 0.5 | weights
model.type_vocab_size | 3 | weights
model.initializer_range | 0.05 | weights
model.layer_norm_eps | 0.01 | weights
model.initialization | local | weights
model.zero_init_outputs | true | weights
model.block | modern | weights
model.global_attn_every_n_layers | 1 | weights | --config {windows}
model.local_attention | 4 | weights | --config {windows}
model.global_rope_theta | 100 | weights | --config {windows}
model.local_rope_theta | 100 | weights | --config {windows}
model.attention | local | weights
model.attention_options | {{"window": 2}} | weights | --model.attention local
rtd.mask_rate | 0.5 | weights
rtd.mask_token_share | 0.2 | weights
rtd.temperature | 9 | weights
rtd.generator_weight | 3 | weights
rtd.discriminator_weight | 3 | weights
rtd.generator_rate | 0.5 | weights
rtd.discriminator_rate | 0.5 | weights
rtd.generator_size | 1 | weights
rtd.generator_layers | 2 | weights
rtd.embedding_sharing | disentangled | weights
rtd.mlm_share | 0.5 | weights
rtd.generator | shared | weights | --rtd.generator_size 1
rtd.mlm_weight | 3 | weights | --rtd.mlm_share 0.5
rtd.generator_warmup_steps | 2 | weights | --init_from {detector} --rtd.generator_warmup_steps 1
rtd.mask_unit | word | weights
mlm.mask_unit | span | weights | --objective mlm
mlm.mask_rate | 0.5 | weights | --objective mlm
mlm.mask_token_share | 0.2 | weights | --objective mlm
mlm.random_token_share | 0.2 | weights | --objective mlm
sop.weight | 3 | weights | --objective rtd_sop --max_seq_length 64
electric.noise_share | 0.25 | weights | --objective electric
"""
)

# early_stopping_patience: no evaluation is better than the one before.
FINETUNING = table(
    TRAINING
    + """\
data.task | is what the other options belong to; finetune/test_learning.py trains every kind
data.data_dir | {tasks}/other/RTE | weights | --task rte --data_dir {tasks}/RTE
data.train_file | {tables}/dev.csv | weights
data.text_column | kind | weights
data.text_pair_column | kind | weights
data.label_column | kind | weights
data.encoding | cp1252 | weights
data.max_train_examples | 16 | weights
data.validation_file | {tables}/train.csv | scores
data.max_eval_examples | 5 | scores
data.test_file | {tables}/train.csv | scores | --predict test --test_file {tables}/dev.csv
data.column_names | text,sort,label,number | weights
data.unknown_labels | decides on rows that are refused otherwise: test_reading_rows.py
data.validation_split | 0.5 | weights | --task custom \
  --train_file {tables}/train.csv --validation_split 0.3
data.regression | true | weights | --label_column number
data.multi_label | true | weights
data.race_level | middle | weights | --task race --data_dir {tasks}/RACE
data.prepared_dir | belongs to the task that is made of the documentation
data.streaming | gives the same examples: tasks/test_hub_tasks.py
tuning.model | {run}/generator | weights
tuning.from_scratch | true | weights
tuning.head | electra | weights
tuning.recipe | albert | weights
tuning.num_train_epochs | 2 | weights
tuning.max_steps | 2 | weights
tuning.warmup_ratio | 0.9 | weights
tuning.warmup_steps | 3 | weights
tuning.layer_decay | 0.3 | weights
tuning.max_seq_length | 9 | weights
tuning.classifier_dropout_prob | 0.7 | weights
tuning.hidden_dropout_prob | 0.7 | weights
tuning.attention_probs_dropout_prob | 0.7 | weights
tuning.class_weights | balanced | weights
tuning.dry_run | true | weights
tuning.num_hidden_layers | 3 | weights
tuning.output_dir | {folder}/other | files
tuning.from_mnli | true | weights | --task glue --data_dir {tasks}/GLUE
tuning.doc_stride | 4 | weights | --task squad --data_dir {tasks}/squad --max_answer_length 3
tuning.max_answer_length | 1 | weights | --task squad --data_dir {tasks}/squad
tuning.double_unordered | true | weights | --text_pair_column kind
tuning.seeds | adds seeds, the best of which is exported: finetune/test_sweep.py
tuning.grid | chooses other options: finetune/test_grid.py
tuning.metric_for_best_model | decides between seeds: finetune/test_own_tables.py
tuning.evals_per_epoch | 3 | scores
tuning.predict | {tables}/train.csv | scores
tuning.early_stopping_patience | 1 | weights | --learning_rate 1e-12 --evals_per_epoch 3
tuning.compare | trains nothing: finetune/test_sweep.py
tuning.push_to_hub | uploads: test_push.py
tuning.hub_private_repo | uploads: test_push.py
tuning.device | needs a GPU
tuning.resume | never refuses what auto continues: finetune/test_sweep.py
training.lr_scheduler_type | linear | weights | --warmup_steps 2
"""
)
FEW_STEPS = (
    "--max_steps 3 --save_steps 1 --save_total_limit 9 --eval_steps 3 --warmup_steps 2 "
    "--logging_steps 1"
)
ONE_EPOCH = (
    "--max_seq_length 32 --num_train_epochs 1 --per_device_train_batch_size 8 --logging_steps 1 "
    "--precision fp32 --device cpu --max_train_examples 24 --max_eval_examples 24"
)
CUSTOM = "--task custom --train_file {tables}/train.csv --validation_file {tables}/dev.csv"
for derived in DERIVED:
    FINETUNING.pop(f"training.{derived}", None)
APPS = {"pretrain": (pretrain, PRETRAINING), "finetune": (finetune, FINETUNING)}
# Of the step; its own tests see their effect: training/test_optimizer.py, training/test_loop.py.
SLOW = "weight_decay adam_beta1 adam_beta2 max_grad_norm lr_decay_share"


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
    for path in (corpus, tables, tasks, folder / "pairs"):
        path.mkdir()
    text = (english(100) + "\n".join(PROSE)).replace("lamp", "Café").replace("letter", "1,912, 19,")
    (corpus / "a.txt").write_bytes(text.encode() + b"\nThe owl lost \xff a key.\n")
    lines = [{"text": text, "body": body} for text, body in pairwise(PROSE)]
    (corpus / "b.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    save_digit_commas(folder / "digits")
    shutil.copytree(finished.folder / "discriminator", folder / "detector")
    for number, name in enumerate(("train", "dev")):
        table = ["text,kind,label,number"]
        for row, story in enumerate(tiny_tasks.stories(24 - number, number)):
            text = story.text.replace("river", "rivér")
            table.append(f'"{text}",{story.kind},{story.place},{row}')
        (tables / f"{name}.csv").write_text("\n".join(table), encoding="utf-8")
    stories = [story.text for story in tiny_tasks.stories(24, 3)]
    pairs = [
        {"sentence_good": text, "sentence_bad": " ".join(text.split()[::-1])} for text in stories
    ]
    (folder / "pairs" / "order.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    for make in (tiny_tasks.rte, tiny_tasks.squad, tiny_tasks.race):
        make(tasks)
    for make in (tiny_tasks.rte, tiny_tasks.mnli):
        make(tasks / "GLUE")
    other = shutil.copytree(tasks / "RTE", tasks / "other" / "RTE") / "train.tsv"
    other.write_text(other.read_text(encoding="utf-8").replace("the river", "the garden"))
    shape = "block: modern, num_hidden_groups: 2, global_attn_every_n_layers: 2, local_attention: 8"
    (folder / "windows").write_text(f"model: {{{shape}}}", encoding="utf-8")
    known = {"run": finished.folder, "tales": finished.corpus, "prepared": folder / "prepared"}
    return {**known, **{path.name: path for path in folder.iterdir()}}


def outcome(folder: Path) -> Outcome:
    paths = sorted(path for path in folder.rglob("*") if "tensorboard" not in path.parts)
    exported = [
        path
        for path in paths
        if path.name == "model.safetensors" and "checkpoints" not in path.parts
    ]
    scores: list[Any] = [untimed_rows(path.parent) for path in paths if path.name == METRICS]
    scores += [path.read_text(encoding="utf-8") for path in paths if path.suffix == ".tsv"]
    files = [str(path.relative_to(folder)) for path in paths]
    return Outcome([sha256(path) for path in exported], scores, files)


@pytest.fixture(scope="module")
def runs(paths: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Runs of three steps and their outcomes, each trained once."""

    @cache
    def train(app: str, options: str, base: Path | None = None) -> tuple[Path, Outcome]:
        folder = tmp_path_factory.mktemp(app)
        words = split(options.format(**paths, folder=folder, base=base))
        if app == "pretrain":
            words = [*FEW_STEPS.split(), *words]
            argv = tiny_run.options(paths["corpus"], paths["prepared"], folder / "run", *words)
        else:
            argv = split(f"--output_dir {folder}/run --model {paths['run']} {ONE_EPOCH}") + words
        succeed(APPS[app][0].main, *argv)
        return folder / "run", outcome(folder)

    return train


def cases() -> list[Any]:
    params = []
    for app, (_, table) in APPS.items():
        for name, entry in table.items():
            section, _, field = name.partition(".")
            is_slow = section == "training" and field in SLOW.split()
            if entry.changes:
                params.append(pytest.param(app, name, marks=[pytest.mark.slow] * is_slow))
    return params


@pytest.mark.parametrize(("app", "name"), cases())
def test_another_value_changes_the_expected_part_of_the_outcome(
    app: str, name: str, runs: Runs
) -> None:
    entry = APPS[app][1][name]
    section, _, field = name.partition(".")
    shared = entry.shared
    if app == "finetune" and "--task" not in shared:
        shared = f"{CUSTOM} {shared}".strip()
    base, before = runs(app, shared)
    option = f"--{name if section in (*GROUPS, 'electric') else field}"
    changed = f"{shared} {option} {quote(entry.value)}".strip()
    _, after = runs(app, changed, base) if "{base}" in entry.value else runs(app, changed)
    parts = [part for part in Outcome._fields if getattr(before, part) != getattr(after, part)]
    assert (parts or ["nothing"])[0] == entry.changes
