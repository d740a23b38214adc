"""Google's TensorFlow 1 checkpoints become stock folders; what is missing or damaged is told in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from electra_albert.apps.from_tf import build_generator, convert_tensorflow, load_vocabulary, locate_tensorflow
from electra_albert.config import ModelConfig
from electra_albert.contracts import UsageError
from electra_albert.corpus.tokenizer import load_tokenizer
from electra_albert.model.tensorflow_names import stock_tensors
from tests.apps.tiny_run import Ended, assert_refused, call, environment
from tests.corpus.test_tokenizer_sentencepiece import train_model
from tests.corpus.tokenizer_kinds import PROSE, wordpiece_vocab
from tests.model.tensorflow_checkpoint import made_variables, with_optimizer
from tests.model.twins import SHAPE

# TensorFlow and those of its dependencies that it imports and we do not have.
PACKAGES = """
tensorflow-cpu==2.21.0 absl-py==2.5.1 astunparse==1.6.3 certifi==2026.10.18 charset-normalizer==3.5.2
flatbuffers==25.12.19 gast==0.7.0 idna==3.20 ml_dtypes==0.6.0 opt_einsum==3.4.0 requests==2.34.2 six==1.17.0
termcolor==3.3.0 urllib3==2.8.0 wrapt==2.5.2
"""
WRITE = """
import sys
import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_eager_execution()
for name, values in np.load(sys.argv[1]).items():
    tf.get_variable(name, initializer=values)
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    tf.train.Saver().save(session, sys.argv[2])
"""
CONVERT = """
import sys
from pathlib import Path
from electra_albert.apps.command_line import run_app
from electra_albert.apps.from_tf import convert_tensorflow

run = lambda argv: convert_tensorflow(Path(argv[0]), Path(argv[1]), print) or 0
raise SystemExit(run_app(run))
"""


def convert(source: Path, output: Path, tokenizer: Path | None = None) -> Ended:
    """A conversion in this process, which has no TensorFlow."""

    def main(_: object) -> int:
        convert_tensorflow(source, output, print, tokenizer)
        return 0

    return call(main)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ModelConfig]:
    """A tokenizer as the archives hold it, and a shape of its size."""
    from transformers.convert_slow_tokenizer import import_protobuf

    file = train_model(tmp_path_factory.mktemp("tokenizer") / "30k-clean.model", [text.lower() for text in PROSE])
    model = import_protobuf().ModelProto()
    model.ParseFromString(file.read_bytes())
    model.pieces.add(piece="▁1912,", score=-1.0)  # as the released one has, and no small training finds
    file.write_bytes(model.SerializeToString())
    return file, replace(SHAPE, vocab_size=len(load_tokenizer(file)), embedding_size=SHAPE.hidden_size)


@pytest.fixture
def folder(trained: tuple[Path, ModelConfig], tmp_path: Path) -> Path:
    """An unpacked archive, whose checkpoint is of no use."""
    return unpack(tmp_path / "albert_base", *trained)


def unpack(folder: Path, tokenizer: Path, config: ModelConfig) -> Path:
    folder.mkdir()
    kept = {name: value for name, value in asdict(config).items() if name not in ("initialization", "layer_norm_eps")}
    contents = {**kept, "hidden_act": "gelu", "net_structure_type": 0, "gap_size": 0, "down_scale_factor": 1}
    (folder / "albert_config.json").write_text(json.dumps(contents))
    (folder / "30k-clean.model").write_bytes(tokenizer.read_bytes())
    (folder / "30k-clean.vocab").write_text("not read")
    for ending in ("index", "meta", "data-00000-of-00001"):
        (folder / f"model.ckpt-best.{ending}").write_bytes(b"nothing")
    return folder


def test_folder_prefix_and_any_of_its_files_name_the_same_checkpoint(folder: Path) -> None:
    wanted = locate_tensorflow(folder)
    assert wanted.prefix == folder / "model.ckpt-best"
    assert wanted.tokenizer == folder / "30k-clean.model"
    for name in ("", ".index", ".meta", ".data-00000-of-00001"):
        assert locate_tensorflow(folder / f"model.ckpt-best{name}") == wanted


def test_of_several_checkpoints_the_released_one_or_the_named_one_is_meant(folder: Path) -> None:
    for step in (10, 20):
        for ending in ("index", "data-00000-of-00001"):
            (folder / f"model.ckpt-{step}.{ending}").touch()
    assert locate_tensorflow(folder).prefix.name == "model.ckpt-best"
    (folder / "model.ckpt-best.index").unlink()
    assert locate_tensorflow(folder / "model.ckpt-10").prefix.name == "model.ckpt-10"
    with pytest.raises(UsageError, match="holds 2 checkpoints; name one of them, as "):
        locate_tensorflow(folder)


def test_a_chinese_archive_is_read_with_its_vocabulary(folder: Path) -> None:
    (folder / "30k-clean.model").rename(folder / "vocab_chinese.txt")
    assert locate_tensorflow(folder).tokenizer == folder / "vocab_chinese.txt"


@pytest.mark.parametrize(
    ("gone", "words"),
    [
        ("model.ckpt-best.index", "holds no model.ckpt-best.index"),
        ("model.ckpt-best.data-00000-of-00001", "model.ckpt-best.data-00000-of-00001 does not exist"),
        ("albert_config.json", "albert_config.json does not exist"),
        ("30k-clean.model", "holds no 30k-clean.model; tell the model's tokenizer by --tokenizer FILE"),
    ],
)
def test_a_folder_without_one_of_its_files_says_which(folder: Path, tmp_path: Path, gone: str, words: str) -> None:
    (folder / gone).unlink()
    ended = convert(folder, tmp_path / "out")
    assert_refused(ended, 2, words)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["albert_base_v2.tar.gz", "albert_base_v2.tgz", "albert_base_v2.tar"])
def test_an_archive_is_refused_with_the_command_that_unpacks_it(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x1f\x8b")
    ended = convert(tmp_path / name, tmp_path / "out")
    assert_refused(ended, 2, f"tar -xf {tmp_path / name}")


@pytest.mark.parametrize("source", ["gone", "x" * 5000, "gone/model.ckpt-best"], ids=["gone", "too long", "prefix"])
def test_a_path_that_is_not_there_is_refused(tmp_path: Path, source: str) -> None:
    ended = convert(tmp_path / source, tmp_path / "out")
    assert_refused(ended, 2, "name the folder of a")


def test_the_checkpoints_own_folder_is_not_written_into(folder: Path) -> None:
    assert_refused(convert(folder, folder), 2, "choose another --output_dir")


@pytest.mark.parametrize("name", ["gone.model", "x" * 5000], ids=["gone", "too long"])
def test_a_named_tokenizer_that_is_not_there_is_refused(folder: Path, tmp_path: Path, name: str) -> None:
    assert_refused(convert(folder, tmp_path / "out", tmp_path / name), 2, "tell the tokenizer by --tokenizer FILE")


def test_two_tokenizers_are_refused_until_one_is_named(folder: Path, tmp_path: Path) -> None:
    (folder / "other.model").write_bytes(b"")
    assert_refused(convert(folder, tmp_path / "out"), 2, "--tokenizer FILE")
    named = locate_tensorflow(folder, folder / "other.model")
    assert named.tokenizer == folder / "other.model"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"vocab_size": 30522, "hidden_size": 768, "directionality": "bidi"}', "no embedding_size"),
        ("{", "is not JSON"),
        ("[]", "no JSON object"),
        (" " * (2 << 20), "too large"),
        ("version https://git-lfs.github.com/spec/v1\n", "git"),
    ],
    ids=["BERT", "cut off", "list", "too large", "pointer"],
)
def test_a_configuration_that_is_none_is_refused(folder: Path, tmp_path: Path, content: str, words: str) -> None:
    (folder / "albert_config.json").write_text(content)
    ended = convert(folder, tmp_path / "out")
    assert_refused(ended, 4, "albert_config.json", words)


def test_a_tokenizer_of_another_size_is_refused(folder: Path, tmp_path: Path) -> None:
    file = folder / "albert_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"vocab_size": 30_000}))
    ended = convert(folder, tmp_path / "out")
    assert_refused(ended, 4, "pieces, the model 30000", "--tokenizer FILE")


def test_a_comma_is_kept_apart_from_a_digit_as_google_does(trained: tuple[Path, ModelConfig]) -> None:
    file, config = trained
    assert "▁1912," in load_tokenizer(file).tokenize("In 1912, it rose")
    pieces = load_vocabulary(file, config).tokenize("In 1912, it rose")
    assert "," in pieces
    assert "".join(pieces) == "▁in▁1912,▁it▁rose"


def test_a_wordpiece_vocabulary_is_taken_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "vocab_chinese.txt"
    file.write_text("\n".join(wordpiece_vocab(do_lower_case=True)), encoding="utf-8")
    size = len(load_tokenizer(file))
    assert len(load_vocabulary(file, replace(SHAPE, vocab_size=size))) == size


def test_without_tensorflow_the_command_that_installs_it_is_told(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    ended = convert(folder, tmp_path / "out")
    assert_refused(ended, 2, "needs TensorFlow", "pip install tensorflow-cpu")


def test_the_modules_start_without_tensorflow_and_torch() -> None:
    heavy = "import sys, electra_albert.apps.from_tf; print([n for n in ('torch', 'tensorflow') if n in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", heavy], env=environment(), capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


@pytest.mark.parametrize("head", ["cls/seq_relationship", "bert/pooler", None])
def test_the_sentence_order_head_is_built_where_it_is_whole(head: str | None) -> None:
    variables = {name: array for name, array in made_variables(SHAPE).items() if not name.startswith(head or "-")}
    model = build_generator(SHAPE, variables, Path("made"))
    assert (model.sentence_order is None) == (head is not None)
    assert (model.pooler is not None) == (head == "cls/seq_relationship")  # which is then all there is of it
    assert not model.training


@pytest.fixture(scope="module")
def tensorflow() -> Iterator[Path]:
    """A folder with TensorFlow, too large for our environment and for the folders that pytest keeps."""
    with tempfile.TemporaryDirectory() as name:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:", "--target", name]
        subprocess.run([*pip, *PACKAGES.split()], check=True, timeout=600)
        yield Path(name)


def run_with(tensorflow: Path, script: str, *argv: Path) -> Ended:
    settings = environment()
    path = os.pathsep.join([settings["PYTHONPATH"], str(tensorflow)])
    command = [sys.executable, "-c", script, *map(str, argv)]
    ended = subprocess.run(
        command, env={**settings, "PYTHONPATH": path}, capture_output=True, text=True, timeout=240, check=False
    )
    return Ended(ended.returncode, ended.stdout, ended.stderr)


def save(tensorflow: Path, folder: Path, variables: dict[str, np.ndarray]) -> None:
    """A checkpoint as Google's code leaves it, by TensorFlow itself."""
    np.savez(folder / "variables.npz", **variables)
    written = run_with(tensorflow, WRITE, folder / "variables.npz", folder / "model.ckpt-best")
    assert written.code == 0, written.err


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_tensorflow_saved_becomes_a_stock_folder_of_the_same_numbers(
    tensorflow: Path, trained: tuple[Path, ModelConfig], tmp_path: Path
) -> None:
    """One test, since TensorFlow is fetched anew for it: the whole way, then three files that must be refused."""
    from safetensors.torch import load_file

    tokenizer, config = trained
    folder, output = unpack(tmp_path / "albert_base", tokenizer, config), tmp_path / "out"
    variables = made_variables(config)
    save(tensorflow, folder, with_optimizer(variables))
    ended = run_with(tensorflow, CONVERT, folder, output)
    assert ended.code == 0, ended.err
    assert f"wrote {folder / 'model.ckpt-best'}" in ended.out
    found = load_file(output / "model.safetensors")
    wanted = stock_tensors(variables, config, "made")
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert json.loads((output / "config.json").read_text())["architectures"] == ["AlbertForPreTraining"]
    assert len(load_tokenizer(output)) == config.vocab_size

    whole = (folder / "model.ckpt-best.data-00000-of-00001").read_bytes()
    for content, words in ((whole[:1000], "hold 1000 bytes"), (b"\x55" * len(whole), "cannot be read")):
        (folder / "model.ckpt-best.data-00000-of-00001").write_bytes(content)
        damaged = run_with(tensorflow, CONVERT, folder, tmp_path / "damaged")
        assert (damaged.code, words in damaged.err, "Traceback" in damaged.err) == (4, True, False), damaged.err
        assert not (tmp_path / "damaged").exists()
    save(tensorflow, folder, {name: values.astype(np.float16) for name, values in variables.items()})
    halved = run_with(tensorflow, CONVERT, folder, tmp_path / "damaged")
    assert (halved.code, "of type float16, not float32" in halved.err) == (4, True), halved.err
