"""User errors in pretraining end with one line (what, why, what to do) and the documented exit
code.
"""

import builtins
import errno
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from electra_albert.apps.command_line import check_can_write
from electra_albert.apps.pretrain import main as pretrain
from electra_albert.apps.run_folder import read_yaml
from tests.apps.conftest import Finished
from tests.apps.tiny_run import (
    STEPS,
    Ended,
    assert_refused,
    call,
    english,
    hashes,
    options,
    succeed,
)
from tests.refusals import rows as table

# The bytes of a --corpus file, and words of the message.
REFUSED_TEXTS = (
    (b" \n\n\t\n", "contains no text"),
    (b"\x7fELF\x02\x01\x00\x00" * 40 + b"text", "binary"),
    (("An owl left.\n" * 20).encode("utf-16"), "iconv -f UTF-16"),
    (("Жили-были дед да баба. " * 20).encode("koi8-r"), "not UTF-8"),
    (b"\x1f\x8b\x08\x00" + b"\x01\x02\x03" * 50, "gzip"),
    (b"The quiet owl left the old tower before dawn.\n", "a single sentence"),
    (english(1).encode(), "--per_device_train_batch_size"),
)


UNUSABLE = table("""
pipe | 2 | not a regular file
folder | 3 | holds no text file
table.csv | 3 | a single sentence
nowhere | 2 | cannot be read (No such file or directory); check path and permissions
missing.txt | 2 | no such file
missing/*.txt | 2 | no file matches
""")


def pretrain_on(corpus: Path, tmp_path: Path, *more: object) -> Ended:
    return call(pretrain.main, *options(corpus, tmp_path / "prepared", tmp_path / "run", *more))


def test_an_unusable_corpus_is_refused(tmp_path: Path) -> None:
    """For example a pipe, which would block, an empty folder, and a broken link."""
    for content, words in REFUSED_TEXTS:
        (tmp_path / "corpus.txt").write_bytes(content)
        assert_refused(pretrain_on(tmp_path / "corpus.txt", tmp_path), 3, words)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "table.csv").write_text("text\nAn owl left.\n")
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    for name, code, words in UNUSABLE:
        assert_refused(pretrain_on(tmp_path / name, tmp_path), int(code), words)
    assert not (tmp_path / "run").exists()


def test_units_of_words_are_refused_for_text_whose_tokens_mark_no_words(tmp_path: Path) -> None:
    draw = random.Random(1)
    lines = (
        "".join(draw.choices("山川日月木火土金水人口目耳手足", k=60)) + "。" for _ in range(200)
    )
    (tmp_path / "corpus.txt").write_text("\n\n".join(lines), encoding="utf-8")
    refused = pretrain_on(tmp_path / "corpus.txt", tmp_path, "--rtd.mask_unit", "ngram")
    assert_refused(refused, 2, "tokens start a word", "set mask_unit to token")
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_corpus_without_permission_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus, open_file = tmp_path / "corpus.txt", open
    corpus.write_text(english(30))

    def denied(path: str, *mode: str, **options: Any) -> Any:
        if str(path) == str(corpus):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return open_file(path, *mode, **options)

    monkeypatch.setattr(builtins, "open", denied)  # root could read the file regardless of its mode
    assert_refused(pretrain_on(corpus, tmp_path), 2, "cannot be read (Permission denied)")


def test_invalid_bytes_are_replaced_and_counted(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_bytes(
        english(30).encode() + b"An \xff owl \xfe left the \xc3 tower.\n"
    )
    ended = pretrain_on(tmp_path / "corpus.txt", tmp_path, "--dry_run")
    assert (ended.code, "3 invalid bytes" in ended.err) == (0, True), ended.err


INVALID = table(r"""
--max_steps 0 | max_steps=0 | [1, 2147483648]
--max_steps 1000000000000000000000000000000 | max_steps=1000
--per_device_train_batch_size 1000000000000000000000000000000 | train_batch_size=1000
--vocab_size 1000000000000 | vocab_size=1000000000000
--learning_rate fast | learning_rate | fast
--max_steps C:\data | --max_steps must be a whole number, not C:\data
--model.attention_options 5 | --model.attention_options must be a mapping, not 5
--rtd.generator uniform | uniform is gone
--vocab_size 99 --tokenizer here | --vocab_size has no effect with --tokenizer here
--learning_rate inf | learning_rate
--max_seq_length 4 | max_seq_length=4 | [8, 1048576]
--model.max_position_embeddings 64 | has no effect with --max_seq_length or --init_from
--precision fp8 | precision | fp8
--model.hidden_size 30 --model.num_attention_heads 4 | hidden_size=30 | multiple
""")


def test_an_invalid_value_is_refused_before_any_file_is_written(in_folder: Path) -> None:
    for argv, *words in [*INVALID, ("--corpus a\0b", "corpus='a\\x00b' holds a NUL")]:
        ended = call(pretrain.main, *argv.split())
        assert_refused(ended, 2, *words)
        assert len(ended.err.splitlines()) == 1
        assert not any(in_folder.iterdir())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_refused(finished: Finished, tmp_path: Path) -> None:
    ended = call(pretrain.main, *finished.options(tmp_path / "run", "--device", "cuda"))
    assert_refused(ended, 2, "--device cpu")


def test_a_config_file_may_hold_text_that_is_no_yaml_itself(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text('text_column: "a\\u0001b"')
    options = {"text_column": "a\x01b"}
    assert read_yaml(tmp_path / "run.yaml", "--config run.yaml") == options


# Regression: the first of two groups was ignored.
TWICE = b"model: {hidden_size: 256}\nmodel: {num_hidden_layers: 2}\n"


def test_a_config_file_without_options_is_refused(in_folder: Path) -> None:
    assert_refused(call(pretrain.main, "--config", "gone.yaml"), 2, "--config gone.yaml")
    assert_refused(call(pretrain.main, "--config", "/dev/null"), 2, "not a regular file")
    code = b"!!python/object/apply:os.getcwd []"
    date = b"seed: 2001-99-99\n"  # regression: YAML fails while it parses the date
    alias = b"seed: [&a [1], *a]"  # regression: nine lines of nine aliases each took all memory
    in_value = b"max_steps: ['" + alias[6:] + b"']"  # the value of an option is YAML too
    deep = b"seed: " + 100_000 * b"["  # regression: took minutes
    costly = (code, date, alias, in_value, deep)
    for content in (b"", b"a: [1,", b"\xff\xfe\x00", b"learning_rate: !!bool x", TWICE, *costly):
        (in_folder / "run.yaml").write_bytes(content)
        reason = "deep nesting" if content == deep else "run.yaml"
        assert_refused(call(pretrain.main, "--config", "run.yaml"), 2, "--config run.yaml", reason)


def test_a_folder_that_cannot_be_written_is_refused(finished: Finished, tmp_path: Path) -> None:
    """A path below a regular file, which root cannot write either."""
    (tmp_path / "file").write_text("")
    before = hashes(tmp_path)
    for option in ("--output_dir", "--prepared_dir"):
        argv = finished.options(tmp_path / "run", option, tmp_path / "file" / "below")
        assert_refused(call(pretrain.main, *argv), 2, f"{tmp_path}/file/below", "cannot")
    assert hashes(tmp_path) == before


def test_a_folder_of_another_run_or_text_is_refused_before_work(
    finished: Finished, copied: Path, tmp_path: Path
) -> None:
    # Regression: a tokenizer was trained and the store built first, and the message named only
    # fingerprints.
    before, corpus = hashes(copied), tmp_path / "more.txt"
    corpus.write_text(finished.corpus.read_text() + "One more owl left.\n")
    for option, value, named in (
        ("--model.hidden_size", 64, "model.hidden_size: 32 before, 64 now"),
        ("--max_seq_length", 24, "max_seq_length: 32 before, 24 now"),
        ("--corpus", corpus, f"corpus: {finished.corpus} before, {corpus} now"),
    ):
        more = f"--max_steps {STEPS + 5} --prepared_dir {tmp_path}/prepared {option} {value}"
        ended = call(pretrain.main, *finished.options(copied, *more.split()))
        assert_refused(ended, 4, "different settings", named)
        assert (tmp_path / "prepared").exists() == (option == "--corpus")
        assert not [*tmp_path.glob("prepared/*/tokenizer"), *tmp_path.glob("prepared/*/store")]
    assert hashes(copied) == before


def test_resuming_never_restarts_from_scratch(finished: Finished, copied: Path) -> None:
    """If the newest checkpoint is damaged, the previous one is used and logged; if all are, the run
    is refused.
    """
    os.truncate(sorted((copied / "checkpoints").iterdir())[1] / "model.safetensors", 100)
    ended = succeed(pretrain.main, *finished.options(copied))
    assert "skipping damaged checkpoint step-0000020: " in ended.err
    assert "model.safetensors has 100 bytes, not " in ended.err
    assert "after step 10" in ended.err
    for checkpoint in (copied / "checkpoints").iterdir():
        (checkpoint / "MANIFEST.json").unlink(missing_ok=True)
    before = hashes(copied)
    assert_refused(call(pretrain.main, *finished.options(copied)), 4, "are damaged", "start again")
    assert hashes(copied) == before


def test_checkpoints_that_do_not_fit_on_the_disk_are_refused_before_training(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage, full = shutil.disk_usage, []

    def almost_full(path: Path) -> Any:
        full.append(path)
        return usage(path)._replace(free=100_000)

    monkeypatch.setattr(shutil, "disk_usage", almost_full)
    words = ("checkpoints need ", "GB are free", "--save_total_limit")
    assert_refused(call(pretrain.main, *finished.options(tmp_path / "run")), 2, *words)
    assert full == [tmp_path]
    assert not (tmp_path / "run").exists()


def test_a_name_with_control_characters_is_refused(finished: Finished, tmp_path: Path) -> None:
    ended = call(pretrain.main, *finished.options(tmp_path / "a\x1b[31m"))
    assert_refused(ended, 2, "control character")
    assert "\x1b" not in ended.err
    # Regression: taken for control characters.
    for name in ("日本\u3000語", "می\u200cخواهم", "no\xa0break", "\udcff"):
        check_can_write(tmp_path / name)


def test_a_diverged_run_ends_with_exit_code_5(finished: Finished, tmp_path: Path) -> None:
    argv = finished.options(tmp_path / "run", "--learning_rate", 1e30, "--max_steps", 40)
    assert_refused(call(pretrain.main, *argv), 5, "training diverged", "--learning_rate")
    assert not (tmp_path / "run" / "generator").exists()
    assert not [path for path in (tmp_path / "run").rglob("*") if path.name.startswith(".writing-")]


def test_text_without_known_tokens_or_order_is_refused_before_training(
    finished: Finished, tmp_path: Path
) -> None:
    short = "\n\n".join(english(100).replace("\n\n", "\n").split("\n")) + "\n"
    chinese = "这是一个句子。\n另一个句子在这里。\n\n" * 200
    for text, option, value, word in (
        (chinese, "--tokenizer", finished.folder / "tokenizer", "unknown"),
        (short, "--objective", "mlm_sop", "no sentence order to learn"),
    ):
        (tmp_path / "text.txt").write_text(text, encoding="utf-8")
        assert_refused(pretrain_on(tmp_path / "text.txt", tmp_path, option, value), 3, word, option)
        assert not (tmp_path / "run").exists()
