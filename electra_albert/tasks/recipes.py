"""Published fine-tuning settings of ELECTRA and ALBERT; steps and warmup are scaled to the number of training examples.

Differs from both implementations: Adam has bias correction, since fine-tuning on little data then fails less often.
"""

from typing import Any, Literal, NamedTuple

from electra_albert.config import ModelConfig
from electra_albert.finetuning_config import TOPICS

Family = Literal["electra", "albert"]


class AlbertRow(NamedTuple):
    """A row of the hyperparameter table for downstream tasks. Paper: ALBERT appendix A.4; run_glue.sh agrees."""

    learning_rate: float
    batch_size: int
    dropout: float  # in the encoder; before the classifier it is 0.1, before the span layer there is none
    steps: int
    warmup_steps: int
    max_seq_length: int
    train_examples: int  # of the task's published training set


ALBERT_ROWS: dict[str, AlbertRow] = {
    "cola": AlbertRow(1e-5, 16, 0.0, 5336, 320, 512, 8_551),
    "stsb": AlbertRow(2e-5, 16, 0.0, 3598, 214, 512, 5_749),
    "sst2": AlbertRow(1e-5, 32, 0.0, 20935, 1256, 512, 67_349),
    "mnli": AlbertRow(3e-5, 128, 0.0, 10000, 1000, 512, 392_702),
    "qnli": AlbertRow(1e-5, 32, 0.0, 33112, 1986, 512, 104_743),
    "qqp": AlbertRow(5e-5, 128, 0.1, 14000, 1000, 512, 363_846),
    "rte": AlbertRow(3e-5, 32, 0.1, 800, 200, 512, 2_490),
    "mrpc": AlbertRow(2e-5, 32, 0.0, 800, 200, 512, 3_668),
    "wnli": AlbertRow(2e-5, 16, 0.1, 2000, 250, 512, 635),
    "squad": AlbertRow(5e-5, 48, 0.0, 3649, 365, 384, 87_599),
    "squad_v2": AlbertRow(3e-5, 48, 0.0, 8144, 814, 512, 130_319),
    # From the README of ALBERT's code: with the paper's 2e-5 and dropout 0.1 version 2 models diverge on RACE.
    "race": AlbertRow(1e-5, 32, 0.0, 12000, 1000, 512, 87_866),
}

# From ELECTRA's code and paper: all other tasks take 3 epochs and sequences of 128 tokens.
ELECTRA_EPOCHS: dict[str, float] = {"rte": 10.0, "stsb": 10.0, "squad": 2.0, "squad_v2": 2.0}
ELECTRA_LENGTHS: dict[str, int] = {"squad": 512, "squad_v2": 512, "chunking": 256, "race": 512}  # RACE: not published
# For tagging and custom tasks nothing is published: the middle of the range in the BERT paper, 3 epochs.
_OTHERS = AlbertRow(3e-5, 32, 0.0, steps=30, warmup_steps=3, max_seq_length=128, train_examples=320)


def recipe(family: Family, task_name: str, model: ModelConfig) -> dict[str, Any]:
    """Default values of fine-tuning and training options; max_seq_length fits the model's positions."""
    task_name = {"ax": "mnli"}.get(task_name, task_name)  # evaluated with a model of MNLI
    has_windows = task_name in ("squad", "squad_v2")
    options = _electra(task_name, model) if family == "electra" else _albert(task_name)
    length = min(options["max_seq_length"], model.max_position_embeddings)
    options |= {"max_seq_length": length, "classifier_dropout_prob": 0.0 if has_windows else 0.1, "adam_epsilon": 1e-6}
    # 128 is a third of the published 384 tokens; shorter sequences keep that share.
    windows = {"doc_stride": min(128, length // 3), "max_answer_length": 30}
    return options | windows if has_windows else options


def _electra(task_name: str, model: ModelConfig) -> dict[str, Any]:
    """Paper: ELECTRA appendix B; the code's defaults differ (1e-4 for small models, weight decay 0.01)."""
    is_small, is_large = model.hidden_size <= 256, model.hidden_size >= 1024
    # Differs from ELECTRA: twice the learning rate for the built-in task, which has only some 120 updates.
    small_rate = 6e-4 if task_name == TOPICS else 3e-4
    return {
        "learning_rate": small_rate if is_small else 5e-5 if is_large else 1e-4,
        "per_device_train_batch_size": 32,
        "num_train_epochs": ELECTRA_EPOCHS.get(task_name, 3.0),
        "max_seq_length": ELECTRA_LENGTHS.get(task_name, 128),
        "lr_scheduler_type": "electra",
        "warmup_ratio": 0.1,
        "weight_decay": 0.0,
        # Differs from ELECTRA: its values are for 12 or 24 distinct layers; shared layers have one depth per block.
        "layer_decay": 0.9 if is_large else 0.8,
        # Differs from ELECTRA, which uses 0.1: models pretrained without dropout mostly score lower with it.
        "hidden_dropout_prob": model.hidden_dropout_prob,
        "attention_probs_dropout_prob": model.attention_probs_dropout_prob,
        "double_unordered": task_name in ("mrpc", "stsb"),  # symmetric pairs
    }


def _albert(task_name: str) -> dict[str, Any]:
    options = {"lr_scheduler_type": "bert", "weight_decay": 0.01, "layer_decay": 1.0, "double_unordered": False}
    row = ALBERT_ROWS.get(task_name, _OTHERS)
    return options | {
        "learning_rate": row.learning_rate,
        "per_device_train_batch_size": row.batch_size,
        "num_train_epochs": row.steps * row.batch_size / row.train_examples,
        "warmup_ratio": row.warmup_steps / row.steps,
        "hidden_dropout_prob": row.dropout,
        "attention_probs_dropout_prob": row.dropout,
        "max_seq_length": row.max_seq_length,
    }
