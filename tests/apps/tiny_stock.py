"""Stock folders at toy size, their text and a new text, and options of Pretraining.py for
--init_from.
"""

import functools
import io
import json
import logging
import re
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor
from transformers import AlbertConfig, BertConfig, ElectraConfig, ModernBertConfig

from electra_albert.apps.pretrain import main as pretrain
from electra_albert.apps.pretrain.job import Job, make_job
from electra_albert.apps.pretrain.options import parse_pretraining
from electra_albert.contracts import Batch
from electra_albert.corpus.examples import eval_batches
from electra_albert.corpus.tokenizer_training import train_tokenizer
from electra_albert.objectives.masking import Targets
from electra_albert.tokenization.tokenizer import save_tokenizer
from tests.apps.tiny_run import TRAINING, Ended, as_argv, english, succeed
from tests.hub.models import make
from tests.training.toy import ALONE

POSITIONS, VOCAB = 64, 150
_SPECIAL = "[PAD] [UNK] [CLS] [SEP] [MASK]"
MLM = ("--objective", "mlm")
NEW_WORDS = ("thermodynamics", "crystallography", "photosynthesis")
_OLD_TEXT, _NEW_TEXT = english(130, seed=4), english(130, seed=9)
_SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": POSITIONS,
    "initializer_range": 0.1,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
_SIZES = TRAINING | {"max_seq_length": 32, "max_steps": 2, "warmup_steps": 1}
_SIZES |= {"logging_steps": 1, "eval_steps": 100, "save_steps": 100}


class Masked(NamedTuple):
    """A held-out batch with its masked input."""

    batch: Batch
    ids: Tensor  # [B, L] int64
    targets: Targets


class Toy:
    """A folder with stock models, the new text, the old text, and their prepared data."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.prepared = folder, folder / "prepared"
        self.new_text, self.old_text = folder / "new.txt", folder / "old.txt"
        words = iter(NEW_WORDS * 2000)
        text = re.sub(r"(?<=.)$", " The NEW found the NEW.", _NEW_TEXT, flags=re.M)
        self.new_text.write_text(re.sub("NEW", lambda _: next(words), text), encoding="utf-8")
        self.old_text.write_text(_OLD_TEXT, encoding="utf-8")

    def stock(self, kind: str, **changes: Any) -> Path:
        """Folder of a stock model of class `kind` with its tokenizer, written once for each set of
        `changes`.
        """
        folder = self.folder / "-".join([kind, *as_argv(changes)])
        if not folder.is_dir():
            write_stock(folder, kind, **changes)
        return folder

    def options(self, origin: Path, output: Path, *more: object) -> list[str]:
        """Options of a run with --init_from `origin` on the new text; `more` comes last and takes
        precedence.
        """
        argv = ["--init_from", origin, "--corpus", self.new_text, "--prepared_dir", self.prepared]
        return [str(word) for word in (*argv, "--output_dir", output, *as_argv(_SIZES), *more)]

    def job(self, origin: Path, *more: object) -> tuple[Job, str]:
        """The job of such a run, in eval mode, and its log."""
        text = io.StringIO()
        logger, handler = logging.getLogger("electra_albert"), logging.StreamHandler(text)
        level = logger.level
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        try:
            _, config = parse_pretraining(
                self.options(origin, self.folder / "no run", *more), "Pretraining.py"
            )
            job = make_job(config, ALONE)
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)
        job.objective.eval()
        return job, text.getvalue()


def adapt(toy: Toy, origin: Path, output: Path, *more: object) -> Ended:
    """A successful run with --init_from `origin`."""
    return succeed(pretrain.main, *toy.options(origin, output, *more))


@functools.cache
def _albert_tokenizer() -> Any:
    return train_tokenizer(_OLD_TEXT.split("\n"), VOCAB, True, "albert")


def _write_wordpiece(folder: Path) -> int:
    """Write BERT's tokenizer files for the words of the old text; returns the vocabulary size."""
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    words = sorted({word.strip(".,").lower() for word in _OLD_TEXT.split()} - set(letters))
    tokens = [*_SPECIAL.split(), *letters, *(f"##{letter}" for letter in letters), ".", ",", *words]
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    contents = {"tokenizer_class": "BertTokenizer", "do_lower_case": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(contents), encoding="utf-8")
    return len(tokens)


def write_stock(folder: Path, kind: str, **changes: Any) -> None:
    """Write a stock model of class `kind` with random parameters by save_pretrained, and a
    tokenizer.
    """
    folder.mkdir(parents=True)
    settings = {**_SHAPE, **changes}
    if kind.startswith("Albert"):
        tokenizer = _albert_tokenizer()
        save_tokenizer(tokenizer, folder, POSITIONS)
        special = {"bos_token_id": tokenizer.cls_token_id, "eos_token_id": tokenizer.sep_token_id}
        sizes = {"vocab_size": VOCAB, "embedding_size": 16}
        family, config = "albert", AlbertConfig(**{**sizes, **special, **settings})
    elif kind.startswith("Bert"):
        family, config = "bert", BertConfig(**{"vocab_size": _write_wordpiece(folder), **settings})
    elif kind.startswith("ModernBert"):
        sizes = {"vocab_size": _write_wordpiece(folder), "pad_token_id": 0}
        family, config = "modernbert", ModernBertConfig(**{**sizes, **settings})
    else:
        sizes = {"vocab_size": _write_wordpiece(folder), "embedding_size": 16}
        family, config = "electra", ElectraConfig(**{**sizes, **settings})
    make(family, kind, config).save_pretrained(folder)


def load_stock(folder: Path, kind: str) -> Any:
    """The stock model in the folder, loaded by transformers."""
    return getattr(transformers, kind).from_pretrained(folder, local_files_only=True).eval()


def stock_inputs(batch: Batch, ids: Tensor) -> dict[str, Tensor]:
    """Inputs of a stock model for a batch whose tokens are `ids`."""
    return {
        "input_ids": ids,
        "attention_mask": batch.attention_mask.long(),
        "token_type_ids": batch.token_type_ids,
    }


def masked_held_out(job: Job) -> list[Masked]:
    """The held-out examples of a run's evaluation, with the same masks."""
    training, batches = job.config.training, []
    for batch in eval_batches(
        job.held_out, training.eval_examples, training.per_device_eval_batch_size
    ):
        with torch.no_grad():
            found = job.objective.corrupt(batch)
        batches.append(Masked(batch, found.masked_ids, found.targets))
    return batches


def stock_mlm_loss(model: Any, masked: list[Masked]) -> float:
    """Loss of a stock masked language model, in nats per masked token."""
    nats = count = torch.zeros(())
    for batch, ids, targets in masked:
        with torch.no_grad():
            outputs = model(**stock_inputs(batch, ids))
        logits = outputs["logits"] if "logits" in outputs else outputs["prediction_logits"]
        rows = torch.arange(len(ids))[:, None]  # [B, 1]
        chosen = logits[rows, targets.positions].flatten(0, 1)
        loss = F.cross_entropy(chosen, targets.labels.flatten(), reduction="none")
        nats = nats + (loss * targets.weight.flatten()).sum()
        count = count + targets.weight.sum()
    return float(nats / count)
