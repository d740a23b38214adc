"""A given tokenizer encodes as its own library, for training, inference and after export."""

import hashlib
import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sentencepiece import SentencePieceProcessor
from tokenizers import AddedToken, Tokenizer, models, trainers
from tokenizers import normalizers as norm
from tokenizers import pre_tokenizers as pre

from electra_albert.tokenization.text_encoder import TextEncoder
from electra_albert.tokenization.tokenizer import (
    SPECIAL_TOKENS,
    fingerprint,
    load_tokenizer,
    save_tokenizer,
    special_ids,
)
from tests.apps.tiny_run import SHIPPED
from tests.tokenization import tokenizer_kinds as kinds
from tests.tokenization.tokenizer_kinds import STOCK_SPECIALS, edit, encoded, train_model

LINES = [*kinds.ACCENTED, *["Über 中文字 ging İda: ﬁne ½ [NAME], 20 <URL>s; 한국어 ガ"] * 20]
TEXTS = [*kinds.NASTY, *LINES[-30:-19], *kinds.nasty_corpus(200, 7, with_specials=False)]
TEXTS += ["[NAME] and [name] <URL>x<URL> a[NAME]b", "X\u0301 E\u0301 e\u0301 ｶﾞ ㅋㅠ ～"]
TEXTS += ["the old bridge, older"]
ADDED = [
    AddedToken("[NAME]", special=True),
    AddedToken("<URL>", lstrip=True, rstrip=True),
    AddedToken("old", single_word=True),
    AddedToken("Café", normalized=True),
]


CONFIG = "tokenizer_config.json"
USES = ("training", "a worker", "inference", "stock")


def ids_by_use(path: Path, folder: Path) -> dict[str, list[list[int]]]:
    """The ids of TEXTS in each use of a tokenizer; `folder` is where it is exported."""
    from transformers import AutoTokenizer

    tokenizer = load_tokenizer(path)
    encoder = TextEncoder(tokenizer)
    save_tokenizer(tokenizer, folder / "saved", 77)
    stock = AutoTokenizer.from_pretrained(str(folder / "saved"))
    return {
        "training": encoded(encoder, TEXTS),
        "a worker": encoded(pickle.loads(pickle.dumps(encoder)), TEXTS),
        "inference": tokenizer(TEXTS, add_special_tokens=False).input_ids,
        "stock": stock(TEXTS, add_special_tokens=False).input_ids,
    }


# Options of spm_train, one model a line.
MODELS = """
normalization_rule_name=nfkc_cf
normalization_rule_name=identity
pad_id=5 unk_id=7 bos_id=9 eos_id=8 normalization_rule_name=nmt_nfkc_cf
pad_id=3 unk_id=0 bos_id=1 eos_id=2 control_symbols=<mask> normalization_rule_name=nfkc
control_symbols=[CLS],[SEP],[MASK],[NAME],<URL>
user_defined_symbols=.,[NAME],<URL>,old
user_defined_symbols=[CLS],[MASK] control_symbols=[SEP] add_dummy_prefix=false
split_by_whitespace=false vocab_size=500
remove_extra_whitespaces=false allow_whitespace_only_pieces=true
remove_extra_whitespaces=false add_dummy_prefix=false normalization_rule_name=identity
"""


@pytest.mark.parametrize("options", MODELS.strip().splitlines())
def test_a_model_file_encodes_as_sentencepiece(options: str, tmp_path: Path) -> None:
    arguments = f"vocab_size=250 user_defined_symbols= {options}".split()
    values = dict(argument.split("=") for argument in arguments)
    path = train_model(tmp_path / "own.model", LINES, **values)
    expected = SentencePieceProcessor(model_file=str(path)).encode(TEXTS)
    assert ids_by_use(path, tmp_path) == dict.fromkeys(USES, expected)


def train(
    model: Any, normalizer: Any, splitter: Any, specials: Sequence[str] = STOCK_SPECIALS
) -> Tokenizer:
    name = type(model).__name__.replace("BPE", "Bpe")
    options = {"unk_token": specials[1]} if name == "Unigram" else {}
    options |= {"vocab_size": 400, "special_tokens": list(specials), "show_progress": False}
    backend = Tokenizer(model)
    backend.normalizer = normalizer
    backend.pre_tokenizer = splitter
    backend.train_from_iterator(LINES, getattr(trainers, f"{name}Trainer")(**options))
    return backend


FAIRSEQ = ["<s>", "<unk>", "<pad>", "</s>", "<mask>"]
STRIPPED = norm.Sequence([norm.NFKD(), norm.StripAccents(), norm.Lowercase()])
BARE = {
    "unigram": (models.Unigram(), norm.NFC(), pre.Metaspace(), SPECIAL_TOKENS),
    "unigram, never": (
        models.Unigram(),
        norm.NFKC(),
        pre.Metaspace(prepend_scheme="never", split=False),
    ),
    "unigram, stripped": (models.Unigram(), STRIPPED, pre.Metaspace(), FAIRSEQ),
    "wordpiece": (
        models.WordPiece(unk_token="[UNK]"),
        norm.BertNormalizer(),
        pre.BertPreTokenizer(),
    ),
    "words": (models.WordLevel(unk_token="[UNK]"), norm.Lowercase(), pre.Whitespace()),
    "bpe": (models.BPE(unk_token="[UNK]", fuse_unk=True), norm.NFKC(), pre.Metaspace()),
    "bpe, bytes": (models.BPE(), norm.NFC(), pre.ByteLevel(add_prefix_space=False), FAIRSEQ),
    "bpe, digits": (
        models.BPE(),
        STRIPPED,
        pre.Sequence([pre.Digits(True), pre.ByteLevel(False)]),
        FAIRSEQ,
    ),
}


@pytest.mark.parametrize("parts", BARE.values(), ids=BARE)
def test_a_bare_file_encodes_as_tokenizers(parts: Any, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    backend = train(*parts)
    for added in ([], ADDED):
        backend.add_tokens(added)
        backend.save(str(path))
        encodings = Tokenizer.from_file(str(path)).encode_batch(TEXTS, add_special_tokens=False)
        expected = [encoding.ids for encoding in encodings]
        assert ids_by_use(path, tmp_path) == dict.fromkeys(USES, expected)


NAMED = {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
STOCK = {
    "AlbertTokenizer": ("unigram", {}),
    "DebertaV2Tokenizer": ("unigram", {"split_by_punct": True}),
    "XLMRobertaTokenizer": ("unigram, stripped", {}),
    "T5Tokenizer": ("unigram", NAMED),
    "BertTokenizer": ("wordpiece", {"do_lower_case": False, "strip_accents": True}),
    "RobertaTokenizer": ("bpe, bytes", {}),
    "RobertaTokenizer, space only in the file": ("bpe, bytes", {"add_prefix_space": True}),
}


@pytest.mark.parametrize("name", STOCK)
def test_a_folder_encodes_as_its_class(name: str, tmp_path: Path) -> None:
    import transformers

    kind, options = STOCK[name]
    model = json.loads(train(*BARE[kind]).to_str())["model"]
    if kind.startswith("unigram"):  # with scores that every reader takes alike
        model["vocab"] = [(token, round(score, 5)) for token, score in model["vocab"]]
    if kind.startswith("bpe"):
        options = options | {"merges": list(map(tuple, model["merges"]))}
    stock = getattr(transformers, name.partition(",")[0])(vocab=model["vocab"], **options)
    for added in ([], ADDED):
        stock.add_tokens(added)
        stock.save_pretrained(tmp_path)
        if "only in the file" in name:
            edit(tmp_path / CONFIG, lambda config: config.update(add_prefix_space=False))
        reloaded = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
        expected = reloaded(TEXTS, add_special_tokens=False).input_ids
        assert ids_by_use(tmp_path, tmp_path) == dict.fromkeys(USES, expected)


@pytest.mark.parametrize("extra", [["old"], {"image_token": "old"}], ids=["list", "dictionary"])
def test_tokens_that_only_the_configuration_adds_are_found(extra: Any, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    kinds.save_vocab_txt(tmp_path, False)
    vocab = kinds.wordpiece_vocab(False)
    added = {len(vocab): AddedToken("[NAME]", special=True).__getstate__()}
    config = {
        "added_tokens_decoder": added,
        "extra_special_tokens": extra,
        "additional_special_tokens": ["great"],
        "do_lower_case": False,
        "tokenizer_class": "BertTokenizer",
    }
    (tmp_path / CONFIG).write_text(json.dumps(config))
    texts = ["the [NAME] older", "greater"]
    ids = encoded(TextEncoder(load_tokenizer(tmp_path)), texts)
    assert ids[0] == [vocab["the"], len(vocab), vocab["old"], vocab["e"], vocab["##r"]]
    stock = AutoTokenizer.from_pretrained(str(tmp_path))
    assert ids == stock(texts, add_special_tokens=False).input_ids


def test_an_added_token_changes_the_fingerprint_of_versions_that_did_not_find_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "tokenizer.json"
    specials = ["<s>", "<pad>", "</s>", "<mask>"]  # without an unknown token
    backend = train(models.BPE(), norm.NFC(), pre.ByteLevel(add_prefix_space=False), specials)
    for tokens in ([], ["old"]):
        backend.add_tokens(tokens)
        backend.save(str(path))
        tokenizer = load_tokenizer(path)
        content = json.loads(tokenizer.backend_tokenizer.to_str())
        identity = [content["model"].pop("vocab"), content["normalizer"], content["pre_tokenizer"]]
        identity += [content["model"], content["added_tokens"], special_ids(tokenizer)[:5]]
        former = hashlib.blake2b(json.dumps(identity).encode(), digest_size=16).hexdigest()
        assert (fingerprint(tokenizer) == former) == (not tokens)


def test_a_folder_with_a_generator_is_accepted_as_a_run_is() -> None:
    first, second = map(load_tokenizer, (SHIPPED, SHIPPED / "generator"))
    assert fingerprint(first) == fingerprint(second)
