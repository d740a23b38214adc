"""The objectives, attention kind, optimizer and task of docs/extending.md are added as printed
there, and used.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

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
# Runs commands in a process that imports the copy of the package.
_DRIVER = """
import json, sys
from electra_albert.cli import main
from tests.apps.tiny_run import call
for line in sys.stdin:
    try:
        ended = call(main, *json.loads(line))
    except SystemExit as end:
        ended = (end.code, "", "")
    print(json.dumps(ended), flush=True)
"""
EPOCH = "--max_seq_length 32 --num_train_epochs 1 --device cpu"
TASK = f"--text_column text --label_column label {EPOCH}"
SHORT = "--max_steps 4 --warmup_steps 1 --save_steps 2 --eval_steps 4"


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
        self.table = folder / "table.csv"
        self.table.write_text("text,label\n" + "the owl,yes\none cat,no\n" * 8, encoding="utf-8")
        path = f"{folder}:{os.environ['PYTHONPATH']}"
        self.environment = {**environment(), "PYTHONPATH": path}
        self.driver = self.start()

    def start(self) -> "subprocess.Popen[str]":
        """A process of the copy that runs commands."""
        pipe = subprocess.PIPE
        env = self.environment
        command = [sys.executable, "-c", _DRIVER]
        return subprocess.Popen(
            command, cwd=self.folder, env=env, stdin=pipe, stdout=pipe, text=True, encoding="utf-8"
        )

    def restart(self) -> None:
        """Import the package again."""
        self.driver.communicate()
        self.driver = self.start()

    def call(self, command: str) -> Ended:
        """Run a command of the copy."""
        assert self.driver.stdin
        assert self.driver.stdout
        print(json.dumps(command.split()), file=self.driver.stdin, flush=True)
        return Ended(*json.loads(self.driver.stdout.readline()))

    def pretrain(self, run: str, more: str) -> Ended:
        folder = self.folder / run
        argv = options(self.corpus, self.folder / "prepared", folder, *more.split())
        return self.call(f"pretrain {' '.join(argv)}")

    def finetune(self, run: Path, name: str, more: str = "") -> Ended:
        files = f"--train_file {self.table} --validation_file {self.table}"
        folder = f"--model {run} --output_dir {self.folder / name}"
        return self.call(f"finetune {files} {TASK} {folder} {more}")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExtendedCopy]:
    extended = ExtendedCopy(tmp_path_factory.mktemp("extended"))
    yield extended
    extended.driver.communicate()


def assert_success(*commands: Ended) -> None:
    for ended in commands:
        assert ended.code == 0, ended.out + ended.err


def test_an_objective_of_one_file_and_one_entry_is_trained_logged_and_exported(
    copy: ExtendedCopy,
) -> None:
    run = copy.folder / "count"
    count = f"--objective mlm_count --mlm.mask_rate 0.3 {SHORT}"
    trained = copy.pretrain("count", f"{count} --count.classes 5")
    assert_success(trained)
    assert "objective mlm_count, mask rate 0.3," in trained.err
    assert "count loss 1.61 (chance level 1.61)" in trained.err
    assert "count loss (nats)" in trained.out
    assert "count_loss" in rows(run)[0]
    card = (run / "README.md").read_text(encoding="utf-8")
    assert "Pretrained by masked language modelling and the number of masked tokens on" in card
    idle = copy.pretrain("other", "--count.classes 2")
    assert_refused(idle, 2, "--count.classes has no effect with --objective rtd")
    resumed = copy.pretrain("count", f"{count} --count.classes 6")
    assert_refused(resumed, 4, "count.classes: 5 before, 6 now")
    assert_success(
        copy.call(f"show-batch --run {run} --step 3"),
        copy.call(f"demo --gen {run} --input {copy.lines}"),
    )


def test_an_objective_without_masks_is_trained_evaluated_checked_and_exported(
    copy: ExtendedCopy,
) -> None:
    # Regression: it ended at the first evaluation, in the FLOPs of the plan, and in doctor.
    run = copy.folder / "shuffled"
    shuffled = f"--objective shuffled --shuffle.share 0.3 {SHORT}"
    trained = copy.pretrain("shuffled", shuffled)
    assert_success(trained)
    assert "shuffled loss (nats)" in trained.out
    assert "masked" not in trained.err
    argv = options(copy.corpus, copy.folder / "prepared", None, *shuffled.split())
    assert_success(copy.call(f"doctor {' '.join(argv)}"), copy.finetune(run, "of_shuffled"))
    shown = copy.call(f"show-batch --run {run} --step 3")
    assert_refused(shown, 2, "objective shuffled masks no tokens")
    assert 0 < rows(run)[-1]["eval_shuffled_loss"] < 1
    assert (run / "discriminator" / "model.safetensors").is_file()
    assert 'subfolder="generator"' not in (run / "README.md").read_text()
    assert not (run / "generator").exists()


def test_an_objective_that_reads_values_is_counted_and_an_incomplete_one_is_named(
    copy: ExtendedCopy,
) -> None:
    file = copy.folder / "electra_albert" / "objectives" / "shuffled.py"
    text = file.read_text(encoding="utf-8")
    reading = "int(batch.input_ids.sum())\n        shuffled, mask ="
    more = ("--objective", "shuffled")
    argv = options(copy.corpus, copy.folder / "prepared", copy.folder / "reading", *more)
    at = argv.index("--max_steps")
    del argv[at : at + 2]
    try:
        file.write_text(text.replace("shuffled, mask =", reading), encoding="utf-8")
        copy.restart()
        assert_success(copy.call(f"pretrain {' '.join(argv)} --flops 2e9"))
        file.write_text(text.replace("    def score(", "    def scores("), encoding="utf-8")
        copy.restart()
        checked = copy.call(f"doctor {' '.join(argv)}")
    finally:
        file.write_text(text, encoding="utf-8")
        copy.restart()
    assert checked.code == 1
    assert "lacks score" in checked.out


def test_help_lists_an_added_objective_and_imports_no_torch(copy: ExtendedCopy) -> None:
    program = (
        "import sys\nfrom electra_albert.apps.pretrain.main import main\n"
        "try:\n    main(['--help-all'])\nfinally:\n    print('torch' in sys.modules)\n"
    )
    command = [sys.executable, "-c", program]
    page = subprocess.check_output(command, cwd=copy.folder, env=copy.environment, text=True)
    text = " ".join(page.split())
    assert "mlm_count, masked language modelling and the number of masked tokens" in text
    assert "Classes for the number of masked tokens; the last is that or more." in text
    assert text.endswith("False")


def test_a_model_that_stock_cannot_compute_gives_a_notice_and_works_in_every_command(
    copy: ExtendedCopy,
) -> None:
    run, tuned = copy.folder / "window", copy.folder / "tuned"
    trained = copy.pretrain(
        "window", f"--model.attention window --model.attention_options.width 4 {SHORT}"
    )
    assert_success(trained)
    notice = trained.err.index("notice: window attention in albert blocks")
    assert notice < trained.err.index("step 1/4")
    other = copy.pretrain("window", SHORT)
    assert_refused(other, 4, "model.attention: window before, softmax now")
    assert_success(
        copy.call(f"demo --gen {run} --input {copy.lines}"),
        copy.call(f"demo --gen {run}/checkpoints/step-0000004 --input {copy.lines}"),
        copy.call(f"show-batch --run {run} --step 3"),
        copy.call(f"score --model {run} --text {copy.corpus}"),
        copy.finetune(run, "tuned"),
        copy.finetune(tuned, "scored", "--num_train_epochs 0"),
        copy.pretrain("again", f"{SHORT} --init_from {run}"),
        copy.pretrain("onward", f"{SHORT} --init_from {run}/discriminator"),
    )
    exported = copy.call(f"export --model {run} --output_dir {copy.folder / 'stock'}")
    assert_refused(exported, 4, "attention window, which transformers does not implement")
    for folder in (run / "generator", run / "discriminator", tuned / "model"):
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        assert (config["attention"], config["attention_options"]) == ("window", {"width": 4})
        card = (folder / "README.md").read_text(encoding="utf-8")
        assert "library_name: transformers" not in card
        assert any(".qkv." in name for name in read_tensors(folder / "model.safetensors"))


def test_an_optimizer_of_one_file_and_one_entry_is_trained_saved_and_resumed(
    copy: ExtendedCopy,
) -> None:
    # Regression: the check of the free disk space ended in a KeyError.
    lion = "--optimizer lion --learning_rate 2e-3"
    assert_success(copy.pretrain("lion", lion))
    unknown = copy.pretrain("tiger", "--optimizer tiger")
    assert_refused(unknown, 2, "optimizer=tiger is not one of lion, adamw, lamb, muon")
    last = copy.folder / "lion" / "checkpoints" / "step-0000020"
    files = [last / "model.safetensors", last / "optimizer.safetensors"]
    wanted = list(map(sha256, files))
    moments = {name.rpartition(".")[2] for name in read_tensors(files[1])}
    assert moments == {"exp_avg", "step"}
    losses = [row["loss"] for row in rows(copy.folder / "lion") if row["phase"] == "train"]
    assert losses[-1] < losses[0]
    shutil.rmtree(last)
    assert_success(copy.pretrain("lion", lion))
    assert list(map(sha256, files)) == wanted


def test_a_task_of_one_entry_is_read_and_trained(copy: ExtendedCopy) -> None:
    data, tuned = copy.folder / "BoolQ", copy.folder / "boolq"
    data.mkdir()
    answers = [
        {"question": f"is it {age}", "passage": "the owl", "answer": age == "old"}
        for age in ("old", "new")
    ]
    for name in ("train", "dev"):
        (data / f"{name}.jsonl").write_text("\n".join(map(json.dumps, answers * 4)))
    assert_success(copy.pretrain("plain", SHORT))
    task = f"--task boolq --data_dir {data} {EPOCH}"
    ended = copy.call(f"finetune {task} --model {copy.folder}/plain --output_dir {tuned}")
    assert_success(ended)
    assert "boolq: 8 train, 8 dev examples" in ended.err
    config = json.loads((tuned / "model" / "config.json").read_text(encoding="utf-8"))
    assert config["id2label"] == {"0": "false", "1": "true"}
