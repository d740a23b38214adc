"""Damaged and unsupported tokenizers are refused in one line with the relevant word."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from electra_albert.tokenization.tokenizer import TextOptions, load_tokenizer
from tests.refusals import assert_refused, rows
from tests.tokenization.tokenizer_kinds import KINDS, edit, save_vocab_txt, train_model

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n"
CONFIG = "tokenizer_config.json"
LONG = "x" * 2000
# The kind, the changed setting and its new value ("added" for an element, nothing if it is
# deleted), and a word of the message. Exceptions of all kinds in the libraries become the same
# refusal, "fetch".
EDITED = r"""
roberta | model.type | "Neural" | fetch
roberta | model.vocab.th | 9 | ids
roberta | model.vocab.extra | 10000 | ids
roberta | model.vocab. | 400 | empty
roberta | added_tokens.added | {"id": 4000000000, "content": "<far>", "special": true} | ids
roberta | added_tokens.added | {"id": 17, "content": "<mask>", "special": true} | ids
roberta | normalizer | {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""} | fetch
roberta | normalizer | {"type": "Replace", "pattern": {"String": "a"}, "content": "LONG"} | makes
roberta | cls_token | "<nowhere>" | cls_token
roberta | pad_token | "</s>" | same
bert uncased | do_lower_case | "yes" | lower_case
bert uncased | extra_special_tokens | ["[X]"] | \[X\]
fast unigram | model.unk_id | 4000000000 | fetch
fast unigram | model.vocab.added | ["[CLS]", -1.0] | ids
albert uncased | model | | model
albert uncased | model.vocab.added | ["[CLS]", -1.0] | ids
albert uncased | model.vocab.7 | [3, -1.0] | fetch
albert uncased | model.vocab.7 | ["LONG", -1.0] | longer
"""


def change(content: Any, setting: str, value: str) -> None:
    *keys, last = setting.split(".")
    for key in keys:
        content = content[key]
    if not value:
        del content[last]
    elif last == "added":
        content.append(json.loads(value))
    else:
        content[int(last) if isinstance(content, list) else last] = json.loads(value)


def assert_refused_in_a_line(path: Path, word: str, what: str) -> None:
    message = assert_refused("CheckpointError", "", load_tokenizer, path)
    message = message.replace(str(path.parent), "")  # of any length
    assert re.search(word, message), what
    assert len(message) < 400, what


@pytest.mark.parametrize(("kind", "setting", "value", "word"), rows(EDITED))
def test_edited_tokenizer_is_refused_in_one_line(
    kind: str, setting: str, value: str, word: str, tmp_path: Path
) -> None:
    KINDS[kind](tmp_path)
    is_content = setting.partition(".")[0] in ("model", "added_tokens", "normalizer")
    file = tmp_path / ("tokenizer.json" if is_content else CONFIG)
    edit(file, lambda content: change(content, setting, value.replace("LONG", LONG)))
    assert_refused_in_a_line(tmp_path, word, setting)


def test_a_tokenizer_of_text_generation_without_a_mask_is_refused(tmp_path: Path) -> None:
    KINDS["roberta"](tmp_path)
    file = tmp_path / "tokenizer.json"
    file.write_text(file.read_text().replace("<mask>", "<|endoftext|>"))
    assert_refused_in_a_line(tmp_path, "mask_token", "no mask")


FILES = [
    ("tokenizer.json", "{", "tokenizer.json"),
    ("tokenizer.json", "[]", "tokenizer.json"),
    ("tokenizer.json", "[" * 100_000, "tokenizer.json"),
    ("tokenizer.json", "\udcff", "tokenizer.json"),
    ("tokenizer.json", POINTER, "LFS"),
    ("vocab.txt", "", "empty"),
    ("vocab.txt", "[PAD]\n\udcff\n", "(?i)utf-8"),
    ("vocab.txt", "<html>\n<body>404</body>\n</html>\n", "pad_token"),
    ("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\na\n", "ids"),
    ("other.model", "", "cut off"),
    ("other.model", "text\n" * 99, "damaged"),
]


def test_a_file_that_is_not_a_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "vocab.bin").write_bytes(b"\0")
    for name, word in (("nowhere", "exist"), ("", "tokenizer.json"), ("vocab.bin", "named")):
        path = tmp_path / name
        assert_refused("UsageError", word, load_tokenizer, path)
    for name, content, word in FILES:
        (tmp_path / name).write_bytes(content.encode("utf-8", "surrogateescape"))
        assert_refused_in_a_line(tmp_path / name, word, name)


def edited(content: bytes, change: Callable[[Any], Any]) -> bytes:
    from transformers.convert_slow_tokenizer import import_protobuf

    proto = import_protobuf().ModelProto()
    proto.ParseFromString(content)
    change(proto)
    return bytes(proto.SerializeToString())


DAMAGE = [
    lambda content: content[: len(content) // 2],
    lambda content: edited(content, lambda proto: proto.ClearField("trainer_spec")),
    lambda content: content.replace("€".encode(), b"\xff\xfe\xfd"),  # not UTF-8
    lambda content: edited(content, lambda it: setattr(it.trainer_spec, "unk_id", 10**6)),
]
OTHER_MODELS = {
    "WORD": {"model_type": "word", "vocab_size": 60},
    "treat_whitespace_as_suffix": {"treat_whitespace_as_suffix": True},
    "symbol '<URL>'": {"user_defined_symbols": ["<URL>"], "normalization_rule_name": "nfkc_cf"},
    "byte fallback": {"byte_fallback": True, "vocab_size": 400},
    "pad_token": {"control_symbols": [], "pad_id": -1, "unk_id": 0, "bos_id": 1, "eos_id": 2},
}


def test_damaged_and_unsupported_sentencepiece_models_are_refused_in_one_line(
    tmp_path: Path,
) -> None:
    path = train_model(tmp_path / "small.model")
    whole = path.read_bytes()
    for damage in DAMAGE:
        path.write_bytes(damage(whole))
        assert_refused_in_a_line(path, "fetch", "damage")
    for word, options in OTHER_MODELS.items():
        assert_refused_in_a_line(train_model(path, **options), word, word)


def test_damage_in_a_file_next_to_the_tokenizer_names_that_file(tmp_path: Path) -> None:
    KINDS["roberta"](tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    assert_refused_in_a_line(tmp_path, r"config\.json next to it", "config.json")


def test_an_option_that_does_not_apply_to_a_tokenizer_is_refused(tmp_path: Path) -> None:
    digits = "split_digit_comma"
    options = {"roberta": "do_lower_case", "fast unigram": digits, "bert uncased": digits}
    for kind, option in options.items():
        KINDS[kind](tmp_path / kind)
        for value in (True, False):
            chosen = TextOptions(**{option: value})
            assert_refused("UsageError", f"--{option} ", load_tokenizer, tmp_path / kind, chosen)


def test_options_apply_to_a_model_in_the_layout_of_albert_only(tmp_path: Path) -> None:
    path = train_model(tmp_path / "own.model")
    for options, expected in {TextOptions(True): "aé", TextOptions(None, False): "Ae"}.items():
        normalizer = load_tokenizer(path, options).backend_tokenizer.normalizer
        assert normalizer.normalize_str("Aé") == expected
    train_model(path, ["The Old Bridge, the House"] * 20)  # with capitals, unlike ALBERT's
    split = TextOptions(split_digit_comma=True)
    assert_refused("UsageError", "--split_digit_comma", load_tokenizer, path, split)
    train_model(path, pad_id=1, unk_id=0)
    assert_refused("UsageError", "--do_lower_case", load_tokenizer, path, TextOptions(True))
    for config in ('{"tokenizer_class": "XLNetTokenizer"}', '{"model_type": "albert"}'):
        (tmp_path / CONFIG).write_text(config)
        assert_refused_in_a_line(path, "Tokenizer has rules", config)


def test_a_token_of_the_maximum_length_does_not_crash_when_freed(tmp_path: Path) -> None:
    # Regression: a token of a megabyte overflowed the stack when the tokenizer was freed.
    save_vocab_txt(tmp_path, True)
    with (tmp_path / "vocab.txt").open("a", encoding="utf-8") as file:
        file.write("x" * 1000 + "\n")
    assert "x" * 1000 in load_tokenizer(tmp_path).get_vocab()
