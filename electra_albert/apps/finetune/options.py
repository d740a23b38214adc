"""The options of `electra-albert finetune`: defaults < published recipe for model and task < --config < flags."""

from __future__ import annotations

from collections.abc import Sequence, Set

from electra_albert.apps.command_line import ShortHelp, add_config, add_switches, config_first, make_parser, parse
from electra_albert.config import TrainingConfig
from electra_albert.contracts import UsageError
from electra_albert.finetuning_config import DERIVED, GLUE, PARTS, FinetuneConfig, option_names
from electra_albert.tasks.registry import find_task

_COMPARE = "compare"
_FOR_NEW_TEXT = (  # options with an effect where a fine-tuned model labels new text
    "task model predict output_dir dry_run config resume device precision text_column text_pair_column label_column "
    "column_names encoding regression max_seq_length doc_stride max_answer_length per_device_eval_batch_size seed "
    "prepared_dir"
)
_SHORT_HELP = ShortHelp(
    (
        *("task", "data_dir", "train_file", "validation_file", "text_column", "text_pair_column", "label_column"),
        *("model", "output_dir", "seeds", "num_train_epochs", "learning_rate", "max_seq_length", "predict", _COMPARE),
    ),
    """python Finetuning.py                                      a built-in task, in minutes
python Finetuning.py --train_file a.csv --validation_file b.csv --text_column review --label_column stars
python Finetuning.py --task cola --data_dir GLUE/CoLA --model runs/mine --seeds 5
python Finetuning.py --task glue --data_dir GLUE --model runs/mine --predict test
python Finetuning.py --compare runs/cola-mine runs/cola-other""",
    "README.md; docs/finetuning.md (tasks, their data, scores), docs/interop.md",
)


def parse_finetuning(argv: Sequence[str]) -> FinetuneConfig:
    """The whole configuration; UsageError where an option is wrong."""
    purpose = "Fine-tune a pretrained encoder on a task, with honest scores."
    parser, words = make_parser("Finetuning.py", purpose, "[--option value ...]"), config_first(argv)
    add_config(parser, "config.yaml of a run")
    for part in PARTS.values():
        parser.add_class_arguments(part, skip={_COMPARE, *(DERIVED if part is TrainingConfig else ())})
    add_switches(parser, *PARTS.values())
    text = "Two folders of results on the same task to compare, instead of training."
    parser.add_argument(f"--{_COMPARE}", type=str, nargs=2, metavar=("A", "B"), help=text)
    options = parse(parser, words, _SHORT_HELP)
    given = parser.parse_args(words, defaults=False).as_dict()
    try:
        parts = {part: kind(**{name: options[name] for name in option_names(part)}) for part, kind in PARTS.items()}
        return FinetuneConfig(**parts, chosen=frozenset(given))
    except ValueError as error:
        raise UsageError(str(error)) from None


def refuse_idle_options(argv: Sequence[str], config: FinetuneConfig) -> None:
    """UsageError for options on the command line that have no effect with the others."""
    given = {word.split("=")[0].removeprefix("--") for word in argv if word.startswith("--")}
    tuning, task = config.tuning, config.data.task
    if task not in (None, GLUE):
        task = find_task(str(task)).name
    if tuning.compare:
        _refuse(given - {_COMPARE}, f"--{_COMPARE}, which only reads two folders of results")
    if config.only_predicts:
        idle = given - {*_FOR_NEW_TEXT.split()} - ({"num_train_epochs"} if not tuning.is_training else set())
        _refuse(idle, f"--predict {tuning.predict} without data to train on")
    if task != GLUE:
        _refuse(given & {"from_mnli"}, "a single --task; name the model fine-tuned on MNLI by --model")
    if task != "race":
        _refuse(given & {"race_level"}, f"--task {task}" if task else "the default task")


def _refuse(names: Set[str], other: str) -> None:
    if names:
        listed = ", ".join(f"--{name}" for name in sorted(names))
        raise UsageError(f"{listed} has no effect with {other}; leave it out")
