"""Faults tried on stock transformers' Trainer, as root: python benchmarks/faults/stock_trainer.py
10 stock.json once

A trial is a run with a fault, then the same command again in a new process. It has held if that
ends with 0 and the weights of an undisturbed run, bit for bit; with a NaN, if none is saved.
OPTIONS and get_last_checkpoint to resume are what a careful user sets. Tokens are masked `once`, or
`each` time as usual: then no resumed run has the same weights.
"""

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import Any

from safetensors.numpy import load_file

STEPS, SAVE_STEPS, LENGTH, VOCAB, MODEL = 400, 25, 64, 200, "final/model.safetensors"
OPTIONS = {
    "max_steps": STEPS,
    "save_strategy": "steps",
    "save_steps": SAVE_STEPS,
    "save_total_limit": 3,
    "seed": 1,
}
OPTIONS |= {
    "full_determinism": True,
    "enable_jit_checkpoint": True,
    "logging_nan_inf_filter": False,
}
OPTIONS |= {
    "per_device_train_batch_size": 16,
    "learning_rate": 1e-3,
    "use_cpu": True,
    "report_to": "none",
}
SIZES = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
# Of an undisturbed run, but for the one that leaves nothing to train.
NEWEST = f"checkpoint-{STEPS - SAVE_STEPS}"
FAULTS = [
    "kill -9 at a random instant",
    "kill -9 inside a save",
    "a flipped bit in the newest checkpoint",
    "SIGTERM",
]
FAULTS += ["full disk", "two runs in one folder", "a NaN in the model"]


def train(output_dir: str, nan_step: str, masking: str) -> None:
    """Train to the end, from the newest checkpoint if there is one."""
    import transformers as tf

    class Diverging(tf.TrainerCallback):  # type: ignore[misc]
        def on_step_begin(
            self, args: Any, state: Any, control: Any, model: Any, **kwargs: Any
        ) -> None:
            if state.global_step == int(nan_step):
                model.predictions.bias.data[0] = float("nan")

    tf.set_seed(1)
    words = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(str, range(5, VOCAB)))
    collator = tf.DataCollatorForLanguageModeling(
        tf.BertTokenizer({word: i for i, word in enumerate(words)})
    )
    model = tf.AlbertForMaskedLM(
        tf.AlbertConfig(**SIZES, intermediate_size=64, hidden_dropout_prob=0.1)
    )
    examples = [{"input_ids": Random(i).choices(range(5, VOCAB), k=LENGTH)} for i in range(1000)]
    options = tf.TrainingArguments(output_dir, **OPTIONS, disable_tqdm=True)
    if masking == "once":
        examples = [
            {name: value[0] for name, value in collator([example]).items()} for example in examples
        ]
        collator = tf.default_data_collator
    trainer = tf.Trainer(model, options, collator, examples, callbacks=[Diverging()])
    trainer.train(resume_from_checkpoint=tf.trainer_utils.get_last_checkpoint(output_dir))
    if trainer.state.global_step == STEPS:  # else SIGTERM has stopped it
        trainer.save_model(Path(output_dir, MODEL).parent)


def start(folder: Path, nan_step: int = -1) -> subprocess.Popen[bytes]:
    """Start the run; returns when Trainer has made the folder, right before the first step."""
    with folder.with_suffix(".log").open("a") as log:
        command = [sys.executable, __file__, "train", str(folder), str(nan_step), sys.argv[3]]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)
    while not folder.exists() and process.poll() is None:
        time.sleep(0.0005)
    return process


def fault(name: str, number: int, folder: Path, clean: Path, seconds: float) -> str | None:
    """Start a run with the fault; returns its outcome if the command need not be repeated to see
    it.
    """
    draw, files = Random(f"{name} {number}"), sorted((clean / NEWEST).iterdir())
    if name == "a flipped bit in the newest checkpoint":  # of one file after the other
        shutil.copytree(
            clean, folder, ignore=shutil.ignore_patterns("final", f"checkpoint-{STEPS}")
        )
        content = bytearray(
            (file := folder / NEWEST / files[number % len(files)].name).read_bytes()
        )
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        file.write_bytes(content)
        return None
    if (
        name == "full disk"
    ):  # with room for half a checkpoint to three and a half; then room is made
        folder.mkdir()
        size = int(sum(file.stat().st_size for file in files) * draw.uniform(0.5, 3.5))
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder], check=True)
        start(folder).wait()
        subprocess.run(["mount", "-o", "remount,size=64m", folder], check=True)
        return None
    if name == "a NaN in the model":
        code = start(folder, draw.randrange(STEPS)).wait()
        saved = (
            value for file in folder.rglob("*.safetensors") for value in load_file(file).values()
        )
        return (
            f"exit {code}, NaN saved" if any((value != value).any() for value in saved) else "held"
        )
    process, is_saving, saves = (
        start(folder),
        name == "kill -9 inside a save",
        draw.randrange(1, STEPS // SAVE_STEPS),
    )
    while is_saving and not (folder / f"checkpoint-{saves * SAVE_STEPS}").exists():
        time.sleep(0.0005)
    time.sleep(draw.uniform(0, 0.05 if is_saving else seconds))
    if name == "two runs in one folder":
        start(folder).wait()
        return f"exit {process.returncode} of the first" if process.wait() else None
    process.send_signal(signal.SIGTERM if name == "SIGTERM" else signal.SIGKILL)
    process.wait()
    is_whole = all(
        (path / file.name).exists() for path in folder.glob("checkpoint-*") for file in files
    )
    if (folder / MODEL).exists() or (is_saving and is_whole):  # too late
        shutil.rmtree(folder)
        return fault(name, number + 1000, folder, clean, seconds)
    return None


def outcome(folder: Path, clean: Path) -> str:
    """Run the same command again and compare."""
    if code := start(folder).wait():
        return (
            f"exit {code}, "
            + folder.with_suffix(".log").read_text().splitlines()[-1].partition(":")[0]
        )
    return (
        "held"
        if (folder / MODEL).read_bytes() == (clean / MODEL).read_bytes()
        else "exit 0, other weights"
    )


def main(count: str, output: str, masking: str) -> None:
    """Try all faults; print and write the table."""
    found: dict[str, Any] = {
        name: version(name) for name in ("torch", "transformers", "accelerate", "safetensors")
    }
    print(
        found,
        "| class | trials | held | failed |",
        "| --- | --- | --- | --- |",
        sep="\n",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as work:
        process, started = start(clean := Path(work, "clean")), time.monotonic()
        assert process.wait() == 0, clean.with_suffix(".log").read_text()
        folder, seconds = Path(work, "run"), time.monotonic() - started
        for name in FAULTS:
            outcomes: Counter[str] = Counter()
            for number in range(int(count)):
                outcomes[fault(name, number, folder, clean, seconds) or outcome(folder, clean)] += 1
                subprocess.run(["umount", "--quiet", folder])  # a full disk
                shutil.rmtree(folder)
            found[name] = {
                "trials": int(count),
                "held": outcomes.pop("held", 0),
                "failed": outcomes,
            }
            print(
                f"| {name} | {count} | {found[name]['held']} | {dict(outcomes) or 0} |", flush=True
            )
    Path(output).write_text(
        json.dumps({"options": OPTIONS, **found}, indent=2) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    train(*sys.argv[2:]) if sys.argv[1] == "train" else main(*sys.argv[1:])
