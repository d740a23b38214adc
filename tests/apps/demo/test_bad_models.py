"""Every command refuses malicious and damaged models: one line, exit code 4, no code run, bounded
time and memory.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from electra_albert.apps import demo, export
from electra_albert.apps.finetune import main as finetune
from electra_albert.apps.pretrain import main as pretrain
from tests.apps.conftest import Finished
from tests.apps.tiny_run import ROOT, Ended, assert_refused, call, finish, flip_last_bit, start
from tests.apps.tiny_tasks import cola
from tests.hub.hostile_files import PICKLES
from tests.tokenization.tokenizer_kinds import edit

WEIGHTS = "model.safetensors"
Harm = Callable[[Path], object]  # of a model's folder


def in_config(**values: object) -> Harm:
    return lambda model: edit(model / "config.json", lambda content: content.update(values))


def as_pickle(name: str) -> Harm:
    def harm(model: Path) -> None:
        (model / WEIGHTS).unlink()
        (model / "pytorch_model.bin").write_bytes(PICKLES[name](model / "canary"))

    return harm


def grow_text(model: Path) -> None:
    """A normalizer that replaces every a by eight, four times."""
    step = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 8}
    bomb = {"type": "Sequence", "normalizers": [step] * 4}
    edit(model / "tokenizer.json", lambda content: content.update(normalizer=bomb))
    kind = {"tokenizer_class": "PreTrainedTokenizerFast"}
    edit(model / "tokenizer_config.json", lambda config: config.update(kind))


HARM: dict[str, tuple[Harm, str]] = {
    "flipped bit": (lambda model: flip_last_bit(model / WEIGHTS), WEIGHTS),
    "code in a pickle": (as_pickle("code"), "pytorch_model.bin"),
    "code in config.json": (in_config(auto_map={"AutoModel": "evil.Model"}), "auto_map"),
    "colours in config.json": (in_config(model_type="\x1b[31m\nalbert"), "type"),
    "tokenizer that expands text": (grow_text, "tokenizer"),
}


@pytest.fixture
def model(finished: Finished, tmp_path: Path) -> Path:
    """A copy of the generator's folder, to damage."""
    return shutil.copytree(finished.folder / "generator", tmp_path / "model")


def run(command: str, finished: Finished, model: Path, folder: Path) -> Ended:
    """Run a command on the model's folder."""
    (folder / "sentences.txt").write_text("The quiet [MASK] left.\n")
    if command == "demo":
        return call(demo.main, "--gen", model, "--input", folder / "sentences.txt")
    if command == "export":
        return call(export.main, "--model", model, "--output_dir", folder / "out")
    if command == "finetune":
        tiny = cola(folder / "tasks")
        return call(finetune.main, *tiny.options(model, folder / "tuned", "--max_steps", 1))
    return call(pretrain.main, *finished.options(folder / "run", "--init_from", model))


@pytest.mark.slow
def test_script_refuses_within_bounded_memory(model: Path, tmp_path: Path) -> None:
    """Regression: the embedding table of config.json was allocated before the weights were read."""
    in_config(vocab_size=2**31 - 1, embedding_size=1 << 20)(model)
    limit = 6 << 30  # bytes of address space; torch alone reserves a third of it
    code = (
        f"import resource, runpy, sys\nresource.setrlimit(resource.RLIMIT_AS, ({limit}, {limit}))\n"
        "sys.argv = sys.argv[1:]\nrunpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    process = start(["-c", code, ROOT / "LM_DEMO.py", "--gen", model], tmp_path)
    assert_refused(finish(process), 4, "config")


@pytest.mark.parametrize(
    ("name", "command"),
    [
        *((name, "demo") for name in HARM),
        *(("code in a pickle", name) for name in ("export", "pretrain", "finetune")),
    ],
)
def test_commands_refuse_a_bad_model(
    finished: Finished, model: Path, tmp_path: Path, name: str, command: str
) -> None:
    harm, word = HARM[name]
    harm(model)
    ended = run(command, finished, model, tmp_path)
    assert_refused(ended, 4, word)
    assert all(line.isprintable() for line in ended.err.splitlines())
    assert not (model / "canary").exists()
    assert not (tmp_path / "out").exists()
    assert not [*tmp_path.glob("tuned/seed-*"), *tmp_path.glob("run/checkpoints/*")]
