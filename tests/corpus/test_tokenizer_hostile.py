"""Damaged and hostile tokenizers of other layouts than ALBERT's: refused in one line and bounded time."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from electra_albert.contracts import CheckpointError, UserError
from electra_albert.corpus.tokenizer import load_tokenizer
from tests.corpus.tokenizer_kinds import edit, save_bert, save_fast_unigram, save_roberta, save_vocab_txt

SECONDS = 40.0  # a little more than a tokenizer that hangs is given


def assert_refused(path: Path, match: str = "fetch|name a|mend") -> None:
    """CheckpointError that is one short line, soon, and without a backtrace of native code."""
    started = time.monotonic()
    with pytest.raises(CheckpointError, match=match) as raised:
        load_tokenizer(path)
    assert time.monotonic() - started < SECONDS
    message = str(raised.value).replace(str(path), "")
    assert "\n" not in message
    assert len(message) < 400


def replace_step(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def set_normalizer(*steps: dict[str, Any]) -> Callable[[Any], None]:
    return lambda content: content.update(normalizer={"type": "Sequence", "normalizers": list(steps)})


def add_token(number: int, text: str, **flags: bool) -> Callable[[Any], None]:
    return lambda content: content["added_tokens"].append({"id": number, "content": text, "special": True} | flags)


BYTE_LEVEL: dict[str, Callable[[Any], Any]] = {
    "unknown model type": lambda content: content["model"].update(type="Neural"),
    "model is no object": lambda content: content.update(model=[1]),
    "another type's model": lambda content: content["model"].update(type="WordPiece"),
    "unknown piece that is not there": lambda content: content["model"].update(unk_token="<nowhere>"),
    "id that is no number": lambda content: content["model"]["vocab"].update(th="7"),
    "negative id": lambda content: content["model"]["vocab"].update(th=-1),
    "id twice": lambda content: content["model"]["vocab"].update(th=9),
    "gap in the ids": lambda content: content["model"]["vocab"].update(extra=10_000),
    "empty piece": lambda content: content["model"]["vocab"].update({"": 400}),
    "merge of what is not there": lambda content: content["model"]["merges"].append(["no", "where"]),
    "merges are no list": lambda content: content["model"].update(merges=3),
    "added token far away": add_token(4 * 10**9, "<far>"),
    "added token that contradicts": add_token(17, "<mask>"),
    "added token without text": add_token(400, ""),
    "added tokens are no objects": lambda content: content.update(added_tokens=["<mask>"]),
    "regex that never ends": set_normalizer(replace_step({"Regex": "(a+)+$"}, "c")),
    "regex that does not parse": set_normalizer(replace_step({"Regex": "("}, "c")),
    "text that grows": set_normalizer(*[replace_step({"String": "a"}, "a" * 8)] * 4),
    "character map cut off": set_normalizer({"type": "Precompiled", "precompiled_charsmap": "AAQAAA=="}),
    "unknown step": set_normalizer({"type": "Shell", "command": "true"}),
    "added tokens are a number": lambda content: content.update(added_tokens=3),
    "cuts are a number": lambda content: content.update(pre_tokenizer={"type": "Sequence", "pretokenizers": 3}),
    "normaliser is a number": lambda content: content.update(normalizer=3),
    "decoder of the wrong form": lambda content: content.update(decoder=3),
}

UNIGRAM: dict[str, Callable[[Any], Any]] = {
    "unknown id out of range": lambda content: content["model"].update(unk_id=4 * 10**9),
    "negative unknown id": lambda content: content["model"].update(unk_id=-1),
    "no unknown id": lambda content: content["model"].update(unk_id=None),
    "infinite score": lambda content: content["model"]["vocab"].__setitem__(9, ["x" * 40, float("inf")]),
    "piece twice": lambda content: content["model"]["vocab"].append(content["model"]["vocab"][9]),
    "empty piece": lambda content: content["model"]["vocab"].append(["", -1.0]),
    "no pieces": lambda content: content["model"].update(vocab=[]),
}


@pytest.mark.parametrize("change", BYTE_LEVEL.values(), ids=BYTE_LEVEL.keys())
def test_damaged_byte_level_tokenizer_is_refused(tmp_path: Path, change: Callable[[Any], Any]) -> None:
    save_roberta(tmp_path)
    edit(tmp_path / "tokenizer.json", change)
    assert_refused(tmp_path)


@pytest.mark.slow
def test_text_that_grows_without_end_is_refused(tmp_path: Path) -> None:
    save_roberta(tmp_path)
    edit(tmp_path / "tokenizer.json", set_normalizer(*[replace_step({"String": "a"}, "a" * 64)] * 12))
    assert_refused(tmp_path)


@pytest.mark.slow
def test_text_that_grows_to_gigabytes_and_shrinks_again_is_refused(tmp_path: Path) -> None:
    # What only the bound on memory stops: few tokens come of it in the end, and within the time given.
    save_roberta(tmp_path)
    growing = [replace_step({"String": "\x07"}, "\x07" * factor) for factor in (64, 64, 64, 64, 8)]
    edit(tmp_path / "tokenizer.json", set_normalizer(*growing, replace_step({"Regex": "\x07+"}, "b")))
    assert_refused(tmp_path, "ended with status")


@pytest.mark.parametrize("change", UNIGRAM.values(), ids=UNIGRAM.keys())
def test_damaged_unigram_tokenizer_is_refused(tmp_path: Path, change: Callable[[Any], Any]) -> None:
    save_fast_unigram(tmp_path)
    edit(tmp_path / "tokenizer.json", change)
    assert_refused(tmp_path)


def test_score_beyond_all_numbers_is_refused(tmp_path: Path) -> None:
    save_fast_unigram(tmp_path)
    file = tmp_path / "tokenizer.json"
    edit(file, lambda content: content["model"]["vocab"].append(["x" * 40, 123456.5]))
    file.write_text(file.read_text(encoding="utf-8").replace("123456.5", "1e999"), encoding="utf-8")
    assert_refused(tmp_path, "finite")


@pytest.mark.parametrize("role", ["pad_token", "cls_token", "sep_token", "mask_token"])
def test_missing_special_token_is_named(tmp_path: Path, role: str) -> None:
    save_roberta(tmp_path)
    edit(tmp_path / "tokenizer_config.json", lambda config: config.update({role: "<nowhere>"}))
    assert_refused(tmp_path, role)


def test_generator_of_text_without_a_mask_is_refused(tmp_path: Path) -> None:
    save_roberta(tmp_path)

    def rename(content: Any) -> None:
        content["model"]["vocab"]["<|endoftext|>"] = content["model"]["vocab"].pop("<mask>")
        content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] != "<mask>"]

    edit(tmp_path / "tokenizer.json", rename)
    edit(tmp_path / "tokenizer_config.json", lambda config: config.pop("mask_token"))
    assert_refused(tmp_path, "mask_token.*<mask>")


def test_two_roles_of_one_token_are_refused(tmp_path: Path) -> None:
    save_roberta(tmp_path)
    edit(tmp_path / "tokenizer_config.json", lambda config: config.update(pad_token="</s>"))
    assert_refused(tmp_path, "same")


@pytest.mark.parametrize("value", ["yes", 1])
def test_setting_that_is_neither_true_nor_false_is_refused(tmp_path: Path, value: object) -> None:
    save_bert(tmp_path, True)
    edit(tmp_path / "tokenizer_config.json", lambda config: config.update(do_lower_case=value))
    assert_refused(tmp_path, "do_lower_case")


VOCABULARIES: dict[str, Callable[[str], str]] = {
    "piece twice": lambda text: text + "house\nhouse\n",
    "empty line": lambda text: "\n" + text,
    "no [MASK]": lambda text: text.replace("[MASK]\n", ""),
    "no [UNK]": lambda text: text.replace("[UNK]\n", ""),
    "nothing": lambda text: "",
    "git LFS pointer": lambda text: "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n",
    "HTML": lambda text: "<html>\n<body>404</body>\n</html>\n",
}


@pytest.mark.parametrize("change", VOCABULARIES.values(), ids=VOCABULARIES.keys())
def test_damaged_vocab_txt_is_refused(tmp_path: Path, change: Callable[[str], str]) -> None:
    save_vocab_txt(tmp_path, True)
    file = tmp_path / "vocab.txt"
    file.write_text(change(file.read_text(encoding="utf-8")), encoding="utf-8")
    assert_refused(file)


def test_vocab_txt_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes(b"[PAD]\n\xff\xfe\n")
    assert_refused(tmp_path, "UTF-8")


@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.txt", "spiece.model", "other.model"])
def test_lfs_pointer_is_told_by_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n", encoding="utf-8"
    )
    assert_refused(tmp_path / name, "LFS")


def test_file_of_no_known_kind_is_a_user_error(tmp_path: Path) -> None:
    (tmp_path / "vocab.bin").write_bytes(b"\0")
    with pytest.raises(UserError, match="named"):
        load_tokenizer(tmp_path / "vocab.bin")
