"""Hostile and damaged models through whole commands: one line, exit code 4, nothing run, bounded time and memory."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from electra_albert.apps import demo, export
from electra_albert.apps.finetune import main as finetune
from electra_albert.apps.pretrain import main as pretrain
from electra_albert.hub.weight_files import write_safetensors
from tests.apps.conftest import Finished
from tests.apps.tiny_run import ROOT, Ended, assert_refused, call, environment
from tests.apps.tiny_tasks import cola, options
from tests.corpus.tokenizer_kinds import edit
from tests.model.hostile_files import PICKLES, UNREADABLE, WRONG, Harmful, safetensors_bytes, saved

SECONDS = 60.0
ADDRESS_SPACE_BYTES = 6 << 30  # what torch alone reserves is a third of it
WEIGHTS = "model.safetensors"
COMMANDS = ("demo", "export", "pretrain", "finetune")
TERABYTES = {"vocab_size": 2**31 - 1, "embedding_size": 1 << 20}
Harm = Callable[[Path], object]  # of a model's folder


def in_config(**values: object) -> Harm:
    return lambda model: edit(model / "config.json", lambda content: content.update(values))


def in_weights(table: Any, name: str) -> Harm:
    change = table[name][0] if isinstance(table[name], tuple) else table[name]
    return lambda model: change(model / WEIGHTS)


def as_pickle(name: str) -> Harm:
    def harm(model: Path) -> None:
        (model / WEIGHTS).unlink()
        (model / "pytorch_model.bin").write_bytes(PICKLES[name](model / "canary"))

    return harm


def as_index(shard: str) -> Harm:
    """The weights one folder up, as code beside them, and an index that names `shard`."""

    def harm(model: Path) -> None:
        from safetensors import safe_open

        with safe_open(str(model / WEIGHTS), "pt") as file:
            names = list(file.keys())
        (model / WEIGHTS).rename(model.parent / "outside.safetensors")
        (model / "code.bin").write_bytes(saved({"a": Harmful(model / "canary")}))
        (model / f"{WEIGHTS}.index.json").write_text(json.dumps({"weight_map": dict.fromkeys(names, shard)}))

    return harm


def grow_text(model: Path) -> None:
    """A normaliser that makes eight letters of every a, four times over."""
    step = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 8}
    bomb = {"type": "Sequence", "normalizers": [step] * 4}
    edit(model / "tokenizer.json", lambda content: content.update(normalizer=bomb))
    edit(model / "tokenizer_config.json", lambda config: config.update(tokenizer_class="PreTrainedTokenizerFast"))


HARM: dict[str, tuple[Harm, str]] = {
    **{f"file: {name}": (in_weights(UNREADABLE, name), WEIGHTS) for name in ("no byte", "a byte less", "a byte more")},
    "file: header of 2^60 bytes": (in_weights(UNREADABLE, "header of 2^60 bytes"), WEIGHTS),
    "file: LFS pointer": (in_weights(UNREADABLE, "LFS pointer"), "git lfs pull"),
    "file: web page": (in_weights(UNREADABLE, "web page"), "a web page"),
    **{
        f"tensors: {name}": (in_weights(WRONG, name), WRONG[name][1])
        for name in ("bfloat16", "float16", "whole numbers", "no number", "compiled and wrapped", "path in a name")
    },
    "tensors: transposed": (in_weights(WRONG, "transposed"), "has shape"),
    "tensors: colours in a name": (in_weights(WRONG, "line break in a name"), "no name of a tensor"),
    **{
        f"pickle: {name}": (as_pickle(name), "pytorch_model.bin")
        for name in ("code", "code in a tar", "code as a key", "whole module", "TorchScript", "view of nothing")
    },
    "config: auto_map": (in_config(auto_map={"AutoModel": "evil.Model"}), "auto_map"),
    "config: kernels": (in_config(_attn_implementation="evil/kernel"), "kernels"),
    "config: 1e9 layers": (in_config(num_hidden_layers=10**9, num_hidden_groups=10**9), "num_hidden_layers"),
    "config: a table of terabytes": (in_config(**TERABYTES), "config"),
    "config: wrong type": (in_config(hidden_size="32"), "hidden_size"),
    "config: null": (in_config(hidden_act=None), "hidden_act"),
    "config: colours": (in_config(model_type="\x1b[31m\nalbert"), "describes a model of type"),
    "index: up": (as_index("../outside.safetensors"), "no file beside it"),
    "index: line break": (as_index("a\nerror: b"), "no file beside it"),
    "index: code": (as_index("code.bin"), "code.bin"),
}


BOUNDED_APART = ("config: a table of terabytes", "pretrain")  # would end the whole machine's tests where it fails


@pytest.fixture
def model(finished: Finished, tmp_path: Path) -> Path:
    """A copy of the generator's folder, to damage."""
    return shutil.copytree(finished.folder / "generator", tmp_path / "model")


@pytest.fixture
def commands(finished: Finished, tmp_path: Path, model: Path) -> dict[str, Callable[[], Ended]]:
    """What a user may do with a model's folder."""
    (tmp_path / "sentences.txt").write_text("The quiet [MASK] left.\n")
    tiny = cola(tmp_path / "tasks")
    start = ("--corpus", finished.corpus, "--init_from", model, "--output_dir", tmp_path / "run", "--device", "cpu")
    return {
        "demo": lambda: call(demo.main, "--gen", model, "--input", tmp_path / "sentences.txt"),
        "export": lambda: call(export.main, "--model", model, "--output_dir", tmp_path / "out"),
        "pretrain": lambda: call(pretrain.main, *start, "--prepared_dir", tmp_path / "made", "--max_steps", 1),
        "finetune": lambda: call(finetune.main, *tiny.options(model, tmp_path / "tuned", "--max_steps", 1)),
    }


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's, on how TorchScript is written
@pytest.mark.parametrize(
    ("name", "command"), [(name, command) for name in HARM for command in COMMANDS if (name, command) != BOUNDED_APART]
)
def test_hostile_model_is_refused_by_every_command(
    model: Path, tmp_path: Path, commands: dict[str, Callable[[], Ended]], name: str, command: str
) -> None:
    harm, words = HARM[name]
    harm(model)
    started = time.monotonic()
    ended = commands[command]()
    assert time.monotonic() - started < SECONDS
    assert_refused(ended, 4, words)
    assert all(line.isprintable() for line in ended.err.splitlines())
    assert not (model / "canary").exists()
    assert not (tmp_path / "out").exists()
    assert not [*tmp_path.glob("tuned/seed-*"), *tmp_path.glob("run/checkpoints/*")]


@pytest.mark.parametrize("command", COMMANDS)
def test_text_that_the_tokenizer_makes_grow_is_refused(
    model: Path, tmp_path: Path, commands: dict[str, Callable[[], Ended]], command: str
) -> None:
    grow_text(model)
    assert_refused(commands[command](), 4, "tokenizer")
    assert not (tmp_path / "out").exists()


def test_sound_model_passes_the_same_commands(commands: dict[str, Callable[[], Ended]]) -> None:
    # So that what is refused above is refused for what was done to it.
    for name in ("demo", "export"):
        ended = commands[name]()
        assert ended.code == 0, ended.err


def bounded(script: str, *argv: object) -> Ended:
    """A script as a user starts it, its address space bounded."""
    code = (
        "import resource, runpy, sys\n"
        f"resource.setrlimit(resource.RLIMIT_AS, ({ADDRESS_SPACE_BYTES}, {ADDRESS_SPACE_BYTES}))\n"
        "sys.argv = sys.argv[1:]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, str(ROOT / script), *map(str, argv)],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * SECONDS,
    )
    return Ended(ended.returncode, ended.stdout, ended.stderr)


def claim_terabytes(model: Path) -> None:
    (model / WEIGHTS).write_bytes(safetensors_bytes({}, b" " * 64, length=(100 << 20) - 1))


BOUNDED: dict[str, tuple[Harm, int]] = {
    "nothing": (lambda model: None, 0),
    "a table of terabytes": (in_config(vocab_size=2**31 - 1), 4),
    "a header of 100 MB": (claim_terabytes, 4),
    "view of nothing": (as_pickle("view of nothing"), 4),
    "huge string": (as_pickle("opcode of a huge string"), 4),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BOUNDED)
def test_script_refuses_within_bounded_memory(model: Path, tmp_path: Path, name: str) -> None:
    harm, code = BOUNDED[name]
    harm(model)
    (tmp_path / "sentences.txt").write_text("The quiet [MASK] left.\n")
    ended = bounded("LM_DEMO.py", "--gen", model, "--input", tmp_path / "sentences.txt")
    if code:
        assert_refused(ended, code)
        assert len(ended.err.splitlines()) == 1
    assert ended.code == code, ended.err


@pytest.mark.slow
def test_pretraining_from_a_false_configuration_takes_bounded_memory(
    finished: Finished, model: Path, tmp_path: Path
) -> None:
    # Regression: the table that config.json tells of was made, gigabyte by gigabyte, before the weights were looked at.
    in_config(**TERABYTES)(model)
    ended = bounded(
        "Pretraining.py", "--corpus", finished.corpus, "--init_from", model, "--output_dir", tmp_path / "run"
    )
    assert_refused(ended, 4, "config")


@pytest.mark.slow
def test_finetuning_script_refuses_a_pickle_with_code_in_one_line(model: Path, tmp_path: Path) -> None:
    as_pickle("code")(model)
    tiny = cola(tmp_path / "tasks")
    ended = bounded("Finetuning.py", *options("cola", tiny.folder, model, tmp_path / "tuned"))
    assert_refused(ended, 4, "anything that could run code is refused")
    assert not (model / "canary").exists()


@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_flipped_bit_in_an_exported_model_is_seen_by_every_command(
    model: Path, tmp_path: Path, commands: dict[str, Callable[[], Ended]], place: str
) -> None:
    from safetensors.torch import load_file

    file = model / WEIGHTS
    write_safetensors(load_file(file), file)
    whole = bytearray(file.read_bytes())
    data = 8 + int.from_bytes(whole[:8], "little")
    offset = {"first": data, "middle": (data + len(whole)) // 2, "last": len(whole) - 4}[place]
    whole[offset] ^= 1
    file.write_bytes(bytes(whole))
    for command in commands.values():
        assert_refused(command(), 4, "its hash is another")
    assert not (tmp_path / "out").exists()
