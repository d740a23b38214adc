"""SentencePiece models: SentencePiece's ids, without its package; damaged ones and other types refused."""

from __future__ import annotations

import json
import lzma
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from electra_albert.contracts import CheckpointError
from electra_albert.corpus.charsmap import check_charsmap, has_key_after_space
from electra_albert.corpus.tokenizer import fingerprint, load_tokenizer, save_tokenizer, special_ids
from electra_albert.corpus.tokenizer_sentencepiece import read_sentencepiece
from electra_albert.corpus.word_encoder import SentenceEncoder, WordEncoder, encoder_settings, make_encoder
from tests.corpus.tokenizer_kinds import NASTY, PROSE, SHARED_DATA

SHARED_MODEL = SHARED_DATA / "albert_vocab" / "30k-clean.rebuilt.model"
SHARED_TEXT = SHARED_DATA / "corpus" / "wikitext2_valid.txt.xz"
USER_DEFINED = ["(", ")", '"', "-", ".", "–", "£", "€"]
DIGITS = ["it cost £5 (or €7.50) – in 1999-2000", "9,999 99, 3.14 1,2", '"x" - y', "a(b)c.d-e", "((..))--££"]
needs_shared_model = pytest.mark.skipif(not SHARED_MODEL.is_file(), reason="needs ALBERT's released vocabulary")


def train_model(path: Path, sentences: list[str] = PROSE, **options: Any) -> Path:
    """A SentencePiece model, of ALBERT's layout unless `options` say otherwise."""
    sentencepiece = pytest.importorskip("sentencepiece")
    layout = {
        "model_type": "unigram",
        "vocab_size": 120,
        "hard_vocab_limit": False,
        "pad_id": 0,
        "unk_id": 1,
        "bos_id": -1,
        "eos_id": -1,
        "control_symbols": ["[CLS]", "[SEP]", "[MASK]"],
        "user_defined_symbols": USER_DEFINED,
        "normalization_rule_name": "nmt_nfkc",
    }
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences),
        model_prefix=str(path.with_suffix("")),
        minloglevel=2,
        **(layout | options),
    )
    return path


@pytest.fixture(scope="module", params=["trained", pytest.param("released", marks=needs_shared_model)])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == "released":
        return SHARED_MODEL
    return train_model(tmp_path_factory.mktemp("model") / "small.model", [text.lower() for text in PROSE + DIGITS])


def normalized(tokenizer: Any, texts: list[str]) -> list[str]:
    """Texts as the tokenizer's normaliser leaves them, but those that SentencePiece and stock are known to cut apart.

    SentencePiece takes the mark of a word's beginning for a space, does not cut at U+0085, and drops NUL.
    """
    normalizer = tokenizer.backend_tokenizer.normalizer
    return [normalizer.normalize_str(text) for text in texts if not set(text) & set("▁\x85\x00")]


def test_ids_equal_those_of_sentencepiece_on_normalised_text(model: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    tokenizer = load_tokenizer(model)
    texts = normalized(tokenizer, NASTY + PROSE[:6] + DIGITS)
    assert make_ids(tokenizer, texts) == processor.encode(texts)


@needs_shared_model
@pytest.mark.skipif(not SHARED_TEXT.is_file(), reason="needs WikiText-2")
def test_ids_of_prose_equal_those_of_sentencepiece() -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    processor = sentencepiece.SentencePieceProcessor(model_file=str(SHARED_MODEL))
    tokenizer = load_tokenizer(SHARED_MODEL)
    with lzma.open(SHARED_TEXT, "rt", encoding="utf-8") as file:
        texts = normalized(tokenizer, [file.readline() for _ in range(400)])
    assert sum(map(len, texts)) > 50_000
    assert make_ids(tokenizer, texts) == processor.encode(texts)


def make_ids(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    ids, lengths = make_encoder(encoder_settings(tokenizer)).encode(texts)
    return [piece.tolist() for piece in np.split(ids, lengths.cumsum()[:-1])]


def test_ids_equal_those_of_stock_where_no_user_defined_piece_stands(model: Path, tmp_path: Path) -> None:
    from transformers import AlbertTokenizer

    shutil.copy(model, tmp_path / "spiece.model")
    stock = AlbertTokenizer.from_pretrained(str(tmp_path), local_files_only=True)
    texts = [text for text in NASTY + PROSE[:6] + DIGITS if not any(piece in text for piece in USER_DEFINED)]
    assert load_tokenizer(tmp_path)(texts)["input_ids"] == stock(texts)["input_ids"]


def test_user_defined_pieces_are_text_and_not_special(model: Path) -> None:
    tokenizer = load_tokenizer(model)
    assert special_ids(tokenizer) == (0, 1, 2, 3, 4)
    assert sorted(tokenizer.all_special_ids) == [0, 1, 2, 3, 4]
    assert tokenizer.decode(tokenizer("a (b).")["input_ids"], skip_special_tokens=True) == "a (b)."


def test_saved_folder_gives_stock_the_same_ids(model: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = load_tokenizer(model)
    save_tokenizer(tokenizer, tmp_path, max_length=77)
    stock = AutoTokenizer.from_pretrained(str(tmp_path), local_files_only=True)
    texts = NASTY + PROSE[:6] + DIGITS
    assert stock(texts)["input_ids"] == tokenizer(texts)["input_ids"]
    assert fingerprint(load_tokenizer(tmp_path)) == fingerprint(tokenizer)


@pytest.mark.parametrize("keep_accents", [True, False])
def test_memo_of_words_does_not_change_ids_behind_a_character_map(
    model: Path, tmp_path: Path, keep_accents: bool
) -> None:
    shutil.copy(model, tmp_path / "spiece.model")
    config = {"keep_accents": keep_accents, "do_lower_case": False}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.keep_accents is keep_accents
    assert isinstance(make_encoder(encoder_settings(tokenizer)), WordEncoder)
    texts = NASTY + PROSE[:6] + DIGITS
    stock = tokenizer(texts, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert make_ids(tokenizer, texts) == stock


def test_character_map_that_looks_behind_a_space_gets_no_memo(tmp_path: Path) -> None:
    rules = tmp_path / "rules.tsv"
    rules.write_text("20 301\t41\n62\t63\n", encoding="utf-8")  # a space with an acute becomes a letter
    path = train_model(tmp_path / "odd.model", normalization_rule_tsv=str(rules), normalization_rule_name="")
    charsmap = read_sentencepiece(path).charsmap
    assert charsmap is not None
    assert check_charsmap(charsmap) == ""
    assert has_key_after_space(charsmap)
    assert isinstance(make_encoder(encoder_settings(load_tokenizer(path))), SentenceEncoder)


@pytest.mark.parametrize("is_cased", [True, False])
def test_model_without_a_configuration_is_cased_where_its_pieces_are(tmp_path: Path, is_cased: bool) -> None:
    path = train_model(tmp_path / "small.model", PROSE if is_cased else [text.lower() for text in PROSE])
    assert load_tokenizer(path).do_lower_case is not is_cased


def test_model_of_another_layout_keeps_its_ids(tmp_path: Path) -> None:
    options = {"pad_id": -1, "unk_id": 0, "bos_id": 1, "eos_id": 2, "control_symbols": ["<pad>", "<mask>"]}
    path = train_model(tmp_path / "other.model", [text.lower() for text in PROSE], **options)
    processor = pytest.importorskip("sentencepiece").SentencePieceProcessor(model_file=str(path))
    tokenizer = load_tokenizer(path)
    names = ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]
    assert list(special_ids(tokenizer)) == [processor.piece_to_id(name) for name in names]
    texts = normalized(tokenizer, NASTY + PROSE[:6])
    assert make_ids(tokenizer, texts) == processor.encode(texts)
    save_tokenizer(tokenizer, tmp_path / "saved", max_length=77)
    assert load_tokenizer(tmp_path / "saved")(texts)["input_ids"] == tokenizer(texts)["input_ids"]


def test_model_without_special_pieces_is_refused_by_their_name(tmp_path: Path) -> None:
    path = train_model(tmp_path / "plain.model", control_symbols=[], pad_id=-1, unk_id=0, bos_id=1, eos_id=2)
    with pytest.raises(CheckpointError, match="pad_token"):
        load_tokenizer(path)


OTHER_TYPES: dict[str, dict[str, Any]] = {
    "BPE": {"model_type": "bpe", "vocab_size": 60},
    "CHAR": {"model_type": "char"},
    "UNIGRAM with byte fallback": {"byte_fallback": True, "vocab_size": 400},
}


@pytest.mark.parametrize("kind", OTHER_TYPES)
def test_model_of_another_type_is_refused_by_its_name(tmp_path: Path, kind: str) -> None:
    path = train_model(tmp_path / "other.model", **OTHER_TYPES[kind])
    with pytest.raises(CheckpointError, match=f"type {kind}, not UNIGRAM"):
        load_tokenizer(path)


def break_pieces(change: Callable[[Any], None]) -> Callable[[bytes], bytes]:
    def damage(content: bytes) -> bytes:
        from transformers.convert_slow_tokenizer import import_protobuf

        proto = import_protobuf().ModelProto()
        proto.ParseFromString(content)
        change(proto)
        return bytes(proto.SerializeToString())

    return damage


def set_piece(proto: Any, **fields: Any) -> None:
    for name, value in fields.items():
        setattr(proto.pieces[20], name, value)


DAMAGED: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "half": lambda content: content[: len(content) // 2],
    "without its last byte": lambda content: content[:-1],
    "cut behind its pieces": break_pieces(lambda proto: proto.ClearField("trainer_spec")),
    "garbage": lambda content: bytes(range(256)) * 50,
    "text": lambda content: b"[PAD]\n[UNK]\n" * 50,
    "piece that is not UTF-8": lambda content: content.replace("€".encode(), b"\xff\xfe\xfd"),
    "unknown piece out of range": break_pieces(lambda proto: setattr(proto.trainer_spec, "unk_id", 10**6)),
    "infinite score": break_pieces(lambda proto: set_piece(proto, score=float("inf"))),
    "piece twice": break_pieces(lambda proto: set_piece(proto, piece=proto.pieces[21].piece)),
    "empty piece": break_pieces(lambda proto: set_piece(proto, piece="")),
    "bad character map": break_pieces(
        lambda proto: setattr(proto.normalizer_spec, "precompiled_charsmap", b"\x00\x04\x00\x00")
    ),
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED.keys())
def test_damaged_model_is_refused_in_one_line(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = train_model(tmp_path / "small.model")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CheckpointError) as raised:
        load_tokenizer(path)
    assert "\n" not in str(raised.value)


_LOAD = """
import sys
sys.modules["sentencepiece"] = None
from pathlib import Path
from electra_albert.corpus.tokenizer import fingerprint, load_tokenizer
print(fingerprint(load_tokenizer(Path(sys.argv[1]))))
"""


@pytest.mark.slow
def test_package_of_sentencepiece_is_not_needed(tmp_path: Path) -> None:
    path = train_model(tmp_path / "small.model")
    root = Path(__file__).parents[2]
    found = subprocess.run(
        [sys.executable, "-c", _LOAD, str(path)], cwd=root, env=os.environ, check=True, capture_output=True, text=True
    )
    assert found.stdout.strip() == fingerprint(load_tokenizer(path))


@needs_shared_model
def test_character_maps_that_pass_the_check_cannot_break_the_normalizer() -> None:
    from tokenizers import normalizers

    charsmap = read_sentencepiece(SHARED_MODEL).charsmap
    assert charsmap is not None
    assert check_charsmap(charsmap) == ""
    generator = np.random.default_rng(5)
    refused = 0
    for _ in range(200):
        damaged = bytearray(charsmap)
        for place in generator.integers(4, len(charsmap), 2):
            damaged[place] = generator.integers(256)
        if check_charsmap(bytes(damaged)):
            refused += 1
            continue
        has_key_after_space(bytes(damaged))
        normalizer = normalizers.Precompiled(bytes(damaged))
        for text in NASTY:
            normalizer.normalize_str(text)  # native code panics where a jump leads out of the map
    assert 0 < refused < 200
