"""Damaged and unsupported tokenizers are refused in one line with the relevant word."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from electra_albert.tokenization.tokenizer import TextOptions, load_tokenizer
from tests.refusals import assert_refused
from tests.tokenization.tokenizer_kinds import KINDS, edit, save_vocab_txt, train_model

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n"
JSON, CONFIG = "tokenizer.json", "tokenizer_config.json"
Change = Callable[[Any], Any]


def model(**changes: Any) -> Change:
    return lambda content: content["model"].update(changes)


def vocab(change: Change) -> Change:
    return lambda content: change(content["model"]["vocab"])


def entry(number: int, *fields: Any) -> Change:
    return vocab(lambda entries: entries.__setitem__(number, list(fields)))


def add_token(number: int, text: str) -> Change:
    return lambda content: content["added_tokens"].append(
        {"id": number, "content": text, "special": True}
    )


def step(**fields: Any) -> Change:
    return lambda content: content.update(normalizer={"type": "Sequence", "normalizers": [fields]})


def without_mask(content: Any) -> None:
    content["model"]["vocab"]["<|endoftext|>"] = content["model"]["vocab"].pop("<mask>")
    content["added_tokens"] = [
        token for token in content["added_tokens"] if token["content"] != "<mask>"
    ]


# (kind, file): the fault, the edit, a word of the message
# Exceptions of all kinds in the libraries become the same refusal, "fetch": one case of each kind.
EDITED: dict[tuple[str, str], list[tuple[str, Change, str]]] = {
    ("roberta", JSON): [
        ("unknown model type", model(type="Neural"), "fetch"),
        ("id twice", vocab(lambda ids: ids.update(th=9)), "ids"),
        ("gap in the ids", vocab(lambda ids: ids.update(extra=10_000)), "ids"),
        ("empty token", vocab(lambda ids: ids.update({"": 400})), "empty"),
        ("added token far away", add_token(4 * 10**9, "<far>"), "ids"),
        ("added token that contradicts", add_token(17, "<mask>"), "ids"),
        (
            "exponential time",
            step(type="Replace", pattern={"Regex": "(a+)+$"}, content=""),
            "fetch",
        ),
        (
            "text that grows",
            step(type="Replace", pattern={"String": "a"}, content="a" * 999),
            "makes",
        ),
        ("text generation tokenizer without a mask", without_mask, "mask_token"),
    ],
    ("roberta", CONFIG): [
        ("role of no token", lambda config: config.update(cls_token="<nowhere>"), "cls_token"),
        ("two roles of one token", lambda config: config.update(pad_token="</s>"), "same"),
    ],
    ("bert uncased", CONFIG): [
        ("flag that is a word", lambda it: it.update(do_lower_case="yes"), "lower_case"),
        ("no special token", lambda it: it.update(extra_special_tokens=["[X]"]), r"\[X\]"),
    ],
    ("fast unigram", JSON): [
        ("unknown id out of range", model(unk_id=4 * 10**9), "fetch"),
        ("token twice", vocab(lambda entries: entries.append(entries[9])), "ids"),
    ],
    ("albert uncased", JSON): [
        ("no model", lambda content: content.pop("model"), "model"),
        ("token twice", vocab(lambda entries: entries.append(entries[9])), "ids"),
        ("token is a number", entry(7, 3, -1.0), "fetch"),
        ("megabyte token", entry(7, "x" * 10**6, -1), "longer"),
    ],
}


def assert_refused_in_a_line(path: Path, word: str, what: str) -> None:
    message = assert_refused("CheckpointError", "", load_tokenizer, path)
    message = message.replace(str(path.parent), "")  # of any length
    assert re.search(word, message), what
    assert len(message) < 400, what


@pytest.mark.parametrize(("kind", "file"), EDITED)
def test_edited_tokenizer_is_refused_in_one_line(kind: str, file: str, tmp_path: Path) -> None:
    KINDS[kind](tmp_path)
    whole = (tmp_path / file).read_bytes()
    for what, change, word in EDITED[kind, file]:
        (tmp_path / file).write_bytes(whole)
        edit(tmp_path / file, change)
        assert_refused_in_a_line(tmp_path, word, what)


FILES = [
    *(
        ("tokenizer.json", content, "tokenizer.json")
        for content in ("{", "[]", "[" * 100_000, "\udcff")
    ),
    *((name, POINTER, "LFS") for name in ("tokenizer.json", "other.model", "vocab.txt")),
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


def edited(content: bytes, change: Change) -> bytes:
    from transformers.convert_slow_tokenizer import import_protobuf

    proto = import_protobuf().ModelProto()
    proto.ParseFromString(content)
    change(proto)
    return bytes(proto.SerializeToString())


SENTENCEPIECE: dict[str, Callable[[bytes], bytes]] = {
    "half": lambda content: content[: len(content) // 2],
    "cut after its tokens": lambda content: edited(
        content, lambda proto: proto.ClearField("trainer_spec")
    ),
    "token that is not UTF-8": lambda content: content.replace("€".encode(), b"\xff\xfe\xfd"),
    "unknown token out of range": lambda content: edited(
        content, lambda it: setattr(it.trainer_spec, "unk_id", 10**6)
    ),
}
OTHER_MODELS: dict[str, dict[str, Any]] = {
    **{kind.upper(): {"model_type": kind, "vocab_size": 60} for kind in ("bpe", "char", "word")},
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
    cases = [(what, damage(whole), "fetch") for what, damage in SENTENCEPIECE.items()]
    cases += [
        (word, train_model(path, **options).read_bytes(), word)
        for word, options in OTHER_MODELS.items()
    ]
    for what, content, word in cases:
        path.write_bytes(content)
        assert_refused_in_a_line(path, word, what)


def test_damage_in_a_file_next_to_the_tokenizer_names_that_file(tmp_path: Path) -> None:
    KINDS["roberta"](tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    assert_refused_in_a_line(tmp_path, r"config\.json next to it", "config.json")


def test_an_option_that_does_not_apply_to_a_tokenizer_is_refused(tmp_path: Path) -> None:
    digits = "split_digit_comma"
    options = {"roberta": "do_lower_case", "fast unigram": digits, "bert uncased": digits}
    for kind, option in options.items():
        folder = tmp_path / kind
        KINDS[kind](folder)
        for value in (True, False):
            text_options = TextOptions(**{option: value})
            assert_refused("UsageError", f"--{option} ", load_tokenizer, folder, text_options)


def test_options_apply_to_a_model_in_the_layout_of_albert_only(tmp_path: Path) -> None:
    path = train_model(tmp_path / "own.model")
    for options, expected in {TextOptions(True): "aé", TextOptions(None, False): "Ae"}.items():
        normalizer = load_tokenizer(path, options).backend_tokenizer.normalizer
        assert normalizer.normalize_str("Aé") == expected
    train_model(path, ["The Old Bridge, the House"] * 20)  # with capitals, unlike ALBERT's
    assert_refused(
        "UsageError",
        "--split_digit_comma",
        load_tokenizer,
        path,
        TextOptions(split_digit_comma=True),
    )
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
