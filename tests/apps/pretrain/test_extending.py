"""The objectives, attention kind, optimizer and task of docs/extending.md are added as printed
there, and used.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from electra_albert.hub.weights import read_tensors
from tests.apps.tiny_run import (
    ROOT,
    Ended,
    assert_refused,
    english,
    environment,
    options,
    rows,
    sha256,
)

_FENCED = re.compile(r"^```python\n(.*?)^```", re.S | re.M)
_TARGET = re.compile(
    r"^# (electra_albert/\S+\.py)(?:, (above|in) ([A-Z_]+))?\n(.*?)(?=^# electra_albert/|\Z)",
    re.S | re.M,
)
# Runs many commands in one process that imports the copy of the package.
_DRIVER = """
import json, sys
from electra_albert.cli import main
from tests.apps.tiny_run import call
for app, argv in json.load(sys.stdin):
    try:
        ended = call(main, app, *argv)
    except SystemExit as end:
        ended = (end.code, "", "")
    print(json.dumps(ended))
"""


def extend(root: Path, document: str) -> None:
    """Write the document's code to its targets: new files, the line above a table, or a table's
    first entry.
    """
    for block in _FENCED.findall(document):
        for name, where, table, code in _TARGET.findall(block):
            file, text, at = root / name, "", 0
            if where:
                text = file.read_text(encoding="utf-8")
                line = re.search(rf"^{table}\b.*?= [({{]", text, re.M)
                at = line.start() if where == "above" else line.end()
            file.write_text(f"{text[:at]}\n{code}\n{text[at:]}", encoding="utf-8")


class ExtendedCopy:
    """A copy of the package with the document's additions, and the folder of its runs."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.corpus = folder, folder / "tales.txt"
        shutil.copytree(
            ROOT / "electra_albert",
            folder / "electra_albert",
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        extend(folder, (ROOT / "docs" / "extending.md").read_text(encoding="utf-8"))
        self.corpus.write_text(english(130), encoding="utf-8")
        self.lines = folder / "lines.txt"  # shorter than the built-in sentences, for 32 positions
        self.lines.write_text("the owl [MASK].\nthe fox slept.\n", encoding="utf-8")

    def options(self, run: str, *more: object) -> list[str]:
        return options(self.corpus, self.folder / "prepared", self.folder / run, *more)

    def run(self, program: str, text: str = "") -> str:
        """Run a Python program in the copy; returns its output."""
        settings: dict[str, Any] = {
            "capture_output": True,
            "text": True,
            "timeout": 240,
            "cwd": self.folder,
        }
        env = {**environment(), "PYTHONPATH": f"{self.folder}:{os.environ['PYTHONPATH']}"}
        ended = subprocess.run([sys.executable, "-c", program], input=text, env=env, **settings)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def call(self, *commands: tuple[str, list[object]]) -> list[Ended]:
        """Run apps of the copy by name, one after the other."""
        out = self.run(
            _DRIVER, json.dumps([(app, [str(word) for word in argv]) for app, argv in commands])
        )
        return [Ended(*json.loads(line)) for line in out.splitlines()]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> ExtendedCopy:
    return ExtendedCopy(tmp_path_factory.mktemp("extended"))


def test_an_objective_of_one_file_and_one_entry_is_trained_logged_and_exported(
    copy: ExtendedCopy,
) -> None:
    count = ["--objective", "mlm_count", "--mlm.mask_rate", 0.3]
    trained, idle, resumed, shown, demo = copy.call(
        ("pretrain", [*copy.options("count", *count), "--count.classes", 5]),
        ("pretrain", [*copy.options("other"), "--count.classes", 2]),
        ("pretrain", [*copy.options("count", *count), "--count.classes", 6]),
        ("show-batch", ["--run", copy.folder / "count", "--step", 3]),
        ("demo", ["--gen", copy.folder / "count", "--input", copy.lines]),
    )
    assert trained.code == 0, trained.err
    assert "objective mlm_count, mask rate 0.3," in trained.err
    assert "count loss 1.61 (chance level 1.61)" in trained.err
    assert "count loss (nats)" in trained.out
    assert "count_loss" in rows(copy.folder / "count")[0]
    card = (copy.folder / "count" / "README.md").read_text(encoding="utf-8")
    assert "Pretrained by masked language modelling and the number of masked tokens on" in card
    assert_refused(idle, 2, "--count.classes has no effect with --objective rtd")
    assert_refused(resumed, 4, "count.classes: 5 before, 6 now")
    assert (shown.code, demo.code) == (0, 0), shown.err + demo.err


def test_an_objective_without_masks_is_trained_evaluated_checked_and_exported(
    copy: ExtendedCopy,
) -> None:
    # Regression: it ended at the first evaluation, in the FLOPs of the plan, and in doctor.
    run, tuned = copy.folder / "shuffled", copy.folder / "of_shuffled"
    shuffled = ["--objective", "shuffled", "--shuffle.share", 0.3]
    table = copy.folder / "shuffled.csv"
    table.write_text("text,label\n" + "the owl,yes\none cat,no\n" * 8, encoding="utf-8")
    task = [
        "--train_file",
        table,
        "--validation_file",
        table,
        "--text_column",
        "text",
        "--label_column",
        "label",
    ]
    task += [
        "--max_seq_length",
        32,
        "--num_train_epochs",
        1,
        "--device",
        "cpu",
        "--output_dir",
        tuned,
    ]
    trained, checked, shown, finetuned = copy.call(
        ("pretrain", [*copy.options("shuffled", *shuffled)]),
        ("doctor", copy.options("unused", *shuffled)),
        ("show-batch", ["--run", run, "--step", 3]),
        ("finetune", ["--model", run, *task]),
    )
    assert trained.code == 0, trained.err
    assert "shuffled loss (nats)" in trained.out
    assert "masked" not in trained.err
    assert (checked.code, finetuned.code) == (0, 0), checked.out + finetuned.err
    assert_refused(shown, 2, "objective shuffled masks no tokens")
    last = rows(run)[-1]
    assert 0 < last["eval_shuffled_loss"] < 1
    assert (run / "discriminator" / "model.safetensors").is_file()
    assert not (run / "generator").exists()


def test_an_objective_that_reads_values_is_counted_and_an_incomplete_one_is_named(
    copy: ExtendedCopy,
) -> None:
    file = copy.folder / "electra_albert" / "objectives" / "shuffled.py"
    text = file.read_text(encoding="utf-8")
    reading = text.replace(
        "shuffled, mask =", "int(batch.input_ids.sum())\n        shuffled, mask ="
    )
    shuffled = ["--objective", "shuffled", "--flops", "2e9"]
    argv = copy.options("reading", *shuffled)
    argv = argv[: argv.index("--max_steps")] + argv[argv.index("--max_steps") + 2 :]
    try:
        file.write_text(reading, encoding="utf-8")
        (trained,) = copy.call(("pretrain", argv))
        file.write_text(text.replace("    def score(", "    def scores("), encoding="utf-8")
        (checked,) = copy.call(("doctor", copy.options("unused", *shuffled[:2])))
    finally:
        file.write_text(text, encoding="utf-8")
    assert trained.code == 0, trained.err
    assert checked.code == 1
    assert "lacks score" in checked.out


def test_help_lists_an_added_objective_and_imports_no_torch(copy: ExtendedCopy) -> None:
    program = (
        "import sys\nfrom electra_albert.apps.pretrain.main import main\n"
        "try:\n    main(['--help-all'])\nfinally:\n    print('torch' in sys.modules)\n"
    )
    page = " ".join(copy.run(program).split())
    assert "mlm_count, masked language modelling and the number of masked tokens" in page
    assert "Classes for the number of masked tokens; the last is that or more." in page
    assert page.endswith("False")


def test_a_model_that_stock_cannot_compute_gives_a_notice_and_works_in_every_command(
    copy: ExtendedCopy,
) -> None:
    run, table = copy.folder / "window", copy.folder / "labelled.csv"
    window = ["--model.attention", "window", "--model.attention_options.width", 4]
    texts = [
        f"{name},{label}"
        for n in range(8)
        for name, label in ((f"the owl {n}", "yes"), (f"one cat {n}", "no"))
    ]
    table.write_text("\n".join(["text,label", *texts]), encoding="utf-8")
    task = [
        "--train_file",
        table,
        "--validation_file",
        table,
        "--text_column",
        "text",
        "--label_column",
        "label",
    ]
    task += ["--max_seq_length", 32, "--num_train_epochs", 1, "--device", "cpu"]
    short = ["--max_steps", 2, "--warmup_steps", 1]
    tuned = copy.folder / "tuned"
    trained, other, *used = copy.call(
        ("pretrain", [*copy.options("window"), *window]),
        ("pretrain", copy.options("window")),
        ("demo", ["--gen", run, "--input", copy.lines]),
        ("demo", ["--gen", run / "checkpoints" / "step-0000020", "--input", copy.lines]),
        ("show-batch", ["--run", run, "--step", 3]),
        ("score", ["--model", run, "--text", copy.corpus]),
        ("finetune", ["--model", run, *task, "--output_dir", tuned]),
        (
            "finetune",
            [
                "--model",
                tuned,
                *task,
                "--num_train_epochs",
                0,
                "--output_dir",
                copy.folder / "scored",
            ],
        ),
        ("pretrain", copy.options("again", *short, "--init_from", run)),
        ("pretrain", copy.options("onward", *short, "--init_from", run / "discriminator")),
        ("export", ["--model", run, "--output_dir", copy.folder / "stock"]),
    )
    assert trained.code == 0, trained.err
    assert trained.err.index("notice: transformers has no attention window") < trained.err.index(
        "step 1/20"
    )
    assert_refused(other, 4, "model.attention: window before, softmax now")
    assert [ended.code for ended in used[:-1]] == [0] * 8, [ended.err for ended in used]
    assert_refused(used[-1], 4, "attention window, which transformers does not implement")
    for folder in (run / "generator", run / "discriminator", tuned / "model"):
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        assert (config["attention"], config["attention_options"]) == ("window", {"width": 4})
        assert "library_name: transformers" not in (folder / "README.md").read_text(
            encoding="utf-8"
        )
        assert any(".qkv." in name for name in read_tensors(folder / "model.safetensors"))


def test_an_optimizer_of_one_file_and_one_entry_is_trained_saved_and_resumed(
    copy: ExtendedCopy,
) -> None:
    # Regression: the check of the free disk space ended in a KeyError.
    checkpoints = copy.folder / "lion" / "checkpoints"
    argv = copy.options("lion", "--optimizer", "lion", "--learning_rate", 2e-3)
    trained, unknown = copy.call(
        ("pretrain", argv), ("pretrain", copy.options("tiger", "--optimizer", "tiger"))
    )
    assert trained.code == 0, trained.err
    assert_refused(unknown, 2, "optimizer=tiger is not one of lion, adamw, lamb, muon")
    last = checkpoints / "step-0000020"
    files = [last / "model.safetensors", last / "optimizer.safetensors"]
    wanted = list(map(sha256, files))
    moments = {name.rpartition(".")[2] for name in read_tensors(files[1])}
    assert moments == {"exp_avg", "step"}
    losses = [row["loss"] for row in rows(copy.folder / "lion") if row["phase"] == "train"]
    assert losses[-1] < losses[0]
    shutil.rmtree(last)
    (resumed,) = copy.call(("pretrain", argv))
    assert resumed.code == 0, resumed.err
    assert list(map(sha256, files)) == wanted


def test_a_task_of_one_entry_is_read_and_trained(copy: ExtendedCopy) -> None:
    run, data, tuned = copy.folder / "plain", copy.folder / "BoolQ", copy.folder / "boolq"
    data.mkdir()
    answers = [
        {"question": f"is it {age}", "passage": "the owl", "answer": age == "old"}
        for age in ("old", "new")
    ]
    for name in ("train", "dev"):
        (data / f"{name}.jsonl").write_text(
            "".join(json.dumps(one) + "\n" for one in answers * 4), encoding="utf-8"
        )
    sizes = ["--max_seq_length", 32, "--num_train_epochs", 1, "--device", "cpu"]
    trained, ended = copy.call(
        ("pretrain", copy.options("plain", "--max_steps", 2, "--warmup_steps", 1)),
        (
            "finetune",
            ["--task", "boolq", "--data_dir", data, "--model", run, *sizes, "--output_dir", tuned],
        ),
    )
    assert (trained.code, ended.code) == (0, 0), trained.err + ended.err
    assert "boolq: 8 train, 8 dev examples" in ended.err
    config = json.loads((tuned / "model" / "config.json").read_text(encoding="utf-8"))
    assert config["id2label"] == {"0": "false", "1": "true"}
