"""Damaged and foreign tokenizers are refused with one line, one class of exception and the word that matters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from electra_albert.contracts import CheckpointError, UsageError
from electra_albert.corpus.tokenizer import TextOptions, load_tokenizer
from tests.corpus.tokenizer_kinds import (
    KINDS,
    edit,
    save_albert,
    save_bert,
    save_fast_unigram,
    save_roberta,
    save_vocab_txt,
    train_model,
)

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n"
JSON, CONFIG = "tokenizer.json", "tokenizer_config.json"


def model(**changes: Any) -> Callable[[Any], Any]:
    return lambda content: content["model"].update(changes)


def vocab(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda content: change(content["model"]["vocab"])


def add_token(number: int, text: str) -> Callable[[Any], None]:
    return lambda content: content["added_tokens"].append({"id": number, "content": text, "special": True})


def step(**fields: Any) -> Callable[[Any], None]:
    return lambda content: content.update(normalizer={"type": "Sequence", "normalizers": [fields]})


def save_uncased_albert(folder: Path) -> None:
    save_albert(folder, True)


def without_mask(content: Any) -> None:
    content["model"]["vocab"]["<|endoftext|>"] = content["model"]["vocab"].pop("<mask>")
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] != "<mask>"]


# name: how the tokenizer is saved, the file that is edited, the edit, a word of the message
EDITED: dict[str, tuple[Callable[[Path], None], str, Callable[[Any], Any], str]] = {
    "unknown model type": (save_roberta, JSON, model(type="Neural"), "fetch"),
    "model is a list": (save_roberta, JSON, lambda content: content.update(model=[1]), "fetch"),
    "no model": (save_uncased_albert, JSON, lambda content: content.pop("model"), "model"),
    "another type's model": (save_roberta, JSON, model(type="WordPiece"), "fetch"),
    "id that is no number": (save_roberta, JSON, vocab(lambda ids: ids.update(th="7")), "fetch"),
    "id twice": (save_roberta, JSON, vocab(lambda ids: ids.update(th=9)), "ids"),
    "gap in the ids": (save_roberta, JSON, vocab(lambda ids: ids.update(extra=10_000)), "ids"),
    "empty token": (save_roberta, JSON, vocab(lambda ids: ids.update({"": 400})), "empty"),
    "merge of what is not there": (
        save_roberta, JSON, lambda content: content["model"]["merges"].append(["no", "where"]), "fetch",
    ),
    "added token far away": (save_roberta, JSON, add_token(4 * 10**9, "<far>"), "ids"),
    "added token that contradicts": (save_roberta, JSON, add_token(17, "<mask>"), "ids"),
    "added token without text": (save_roberta, JSON, add_token(400, ""), "empty"),
    "regex that does not parse": (
        save_roberta, JSON, step(type="Replace", pattern={"Regex": "("}, content=""), "fetch",
    ),
    "regex that never ends": (
        save_roberta, JSON, step(type="Replace", pattern={"Regex": "(a+)+$"}, content=""), "fetch",
    ),
    "text that grows": (save_roberta, JSON, step(type="Replace", pattern={"String": "a"}, content="a" * 999), "makes"),
    "unknown step": (save_roberta, JSON, step(type="Shell", command="true"), "fetch"),
    "character map cut off": (save_roberta, JSON, step(type="Precompiled", precompiled_charsmap="AAQAAA=="), "fetch"),
    "generator of text without a mask": (save_roberta, JSON, without_mask, "mask_token"),
    "role of no token": (save_roberta, CONFIG, lambda config: config.update(cls_token="<nowhere>"), "cls_token"),
    "two roles of one token": (save_roberta, CONFIG, lambda config: config.update(pad_token="</s>"), "same"),
    "flag that is a word": (
        lambda folder: save_bert(folder, True), CONFIG, lambda config: config.update(do_lower_case="yes"), "lower_case",
    ),
    "unknown id out of range": (save_fast_unigram, JSON, model(unk_id=4 * 10**9), "fetch"),
    "no unknown id": (save_fast_unigram, JSON, model(unk_id=None), "fetch"),
    "infinite score": (
        save_fast_unigram, JSON, vocab(lambda rows: rows.__setitem__(9, ["x" * 40, float("inf")])), "fetch",
    ),
    "token twice": (save_fast_unigram, JSON, vocab(lambda rows: rows.append(rows[9])), "ids"),
    "no tokens": (save_uncased_albert, JSON, model(vocab=[]), "fetch"),
    "ALBERT's token twice": (save_uncased_albert, JSON, vocab(lambda rows: rows.append(rows[9])), "ids"),
    "token is a number": (save_uncased_albert, JSON, vocab(lambda rows: rows.__setitem__(7, [3, -1.0])), "fetch"),
    "half a character": (save_uncased_albert, JSON, vocab(lambda rows: rows.__setitem__(7, ["\ud800", -1.0])), "fetch"),
    "megabyte token": (save_uncased_albert, JSON, vocab(lambda rows: rows.__setitem__(7, ["x" * 10**6, -1])), "longer"),
    "score is null": (save_uncased_albert, JSON, vocab(lambda rows: rows.__setitem__(7, ["xx", None])), "fetch"),
}  # fmt: skip


@pytest.mark.parametrize("name", EDITED)
def test_edited_tokenizer_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    save, file, change, word = EDITED[name]
    save(tmp_path)
    edit(tmp_path / file, change)
    with pytest.raises(CheckpointError, match=word) as raised:
        load_tokenizer(tmp_path)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value).replace(str(tmp_path), "")) < 400


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("tokenizer.json", "{", "JSON"),
        ("tokenizer.json", "[]", "TypeError"),
        ("tokenizer.json", "[" * 100_000, "JSON"),
        ("tokenizer.json", "\udcff", "decode"),
        ("tokenizer.json", POINTER, "LFS"),
        ("other.model", POINTER, "LFS"),
        ("vocab.txt", POINTER, "LFS"),
        ("vocab.txt", "", "empty"),
        ("vocab.txt", "[PAD]\n\udcff\n", "utf-8"),
        ("vocab.txt", "<html>\n<body>404</body>\n</html>\n", "pad_token"),
        ("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\na\n", "ids"),
        ("vocab.txt", "[PAD]\n[CLS]\n[SEP]\n[MASK]\na\n", "fetch"),
        ("other.model", "", "cut off"),
        ("other.model", "text\n" * 99, "damaged"),
    ],
)
def test_file_that_is_no_tokenizer_is_refused(name: str, content: str, word: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(CheckpointError, match=word):
        load_tokenizer(tmp_path / name)


def test_file_or_folder_without_a_tokenizer_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "vocab.bin").write_bytes(b"\0")
    for path, word in (
        (tmp_path / "nowhere", "exist"),
        (tmp_path, "tokenizer.json"),
        (tmp_path / "vocab.bin", "named"),
    ):
        with pytest.raises(UsageError, match=word):
            load_tokenizer(path)


def proto_edit(change: Callable[[Any], None]) -> Callable[[bytes], bytes]:
    def damage(content: bytes) -> bytes:
        from transformers.convert_slow_tokenizer import import_protobuf

        proto = import_protobuf().ModelProto()
        proto.ParseFromString(content)
        change(proto)
        return bytes(proto.SerializeToString())

    return damage


SENTENCEPIECE: dict[str, Callable[[bytes], bytes]] = {
    "half": lambda content: content[: len(content) // 2],
    "without its last byte": lambda content: content[:-1],
    "cut after its tokens": proto_edit(lambda proto: proto.ClearField("trainer_spec")),
    "token that is not UTF-8": lambda content: content.replace("€".encode(), b"\xff\xfe\xfd"),
    "unknown token out of range": proto_edit(lambda proto: setattr(proto.trainer_spec, "unk_id", 10**6)),
    "token twice": proto_edit(lambda proto: setattr(proto.pieces[20], "piece", proto.pieces[21].piece)),
    "empty token": proto_edit(lambda proto: setattr(proto.pieces[20], "piece", "")),
    "bad character map": proto_edit(
        lambda proto: setattr(proto.normalizer_spec, "precompiled_charsmap", b"\x00\x04\x00\x00")
    ),
}


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return train_model(tmp_path_factory.mktemp("model") / "small.model").read_bytes()


@pytest.mark.parametrize("name", SENTENCEPIECE)
def test_damaged_sentencepiece_model_is_refused_in_one_line(name: str, sentencepiece: bytes, tmp_path: Path) -> None:
    (tmp_path / "small.model").write_bytes(SENTENCEPIECE[name](sentencepiece))
    with pytest.raises(CheckpointError) as raised:
        load_tokenizer(tmp_path / "small.model")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"model_type": "bpe", "vocab_size": 60}, "BPE"),
        ({"byte_fallback": True, "vocab_size": 400}, "byte fallback"),
        ({"control_symbols": [], "pad_id": -1, "unk_id": 0, "bos_id": 1, "eos_id": 2}, "pad_token"),
    ],
)
def test_sentencepiece_model_of_another_type_is_refused(options: dict[str, Any], word: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=word):
        load_tokenizer(train_model(tmp_path / "other.model", **options))


@pytest.mark.parametrize(
    ("kind", "option", "word"),
    [
        ("roberta", "do_lower_case", "own pipeline"),
        ("word level", "keep_accents", "own pipeline"),
        ("fast unigram", "split_digit_comma", "own pipeline"),
        ("bert uncased", "split_digit_comma", "comma"),
        ("vocab.txt cased", "split_digit_comma", "comma"),
    ],
)
def test_an_option_that_a_tokenizer_does_not_take_is_refused(kind: str, option: str, word: str, tmp_path: Path) -> None:
    KINDS[kind](tmp_path)
    for value in (True, False):
        given: dict[str, Any] = {option: value}
        with pytest.raises(UsageError, match=f"--{option} .*{word}"):
            load_tokenizer(tmp_path, TextOptions(**given))


def test_a_token_near_the_longest_is_freed_without_harm(tmp_path: Path) -> None:
    # Regression: a token of a megabyte overflowed the stack when the tokenizer was freed.
    save_vocab_txt(tmp_path, True)
    with (tmp_path / "vocab.txt").open("a", encoding="utf-8") as file:
        file.write("x" * 1000 + "\n")
    assert "x" * 1000 in load_tokenizer(tmp_path).get_vocab()
