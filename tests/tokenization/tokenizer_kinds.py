"""Small tokenizers of every kind, as transformers writes them, and difficult text."""

import json
import os
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentencepiece import SentencePieceTrainer

from electra_albert.corpus.tokenizer_training import train_tokenizer
from electra_albert.tokenization.text_encoder import TextEncoder
from electra_albert.tokenization.tokenizer import build_albert, save_tokenizer
from electra_albert.tokenization.unigram import ROLES, SPECIAL_TOKENS

SHARED_DATA = Path(
    os.environ.get("ELECTRA_ALBERT_DATA") or Path(__file__).parents[3] / "shared" / "data"
)

PROSE = [
    "The house on the hill was old, and the people in it were older still.",
    "A dog barked at the moon; nobody in the house on the hill heard it.",
    "In 1912 the river rose, and the old bridge fell into it with a great noise.",
    "People say that the river sings at night, but people say a great many things.",
    "Was the bridge ever built again? It was not; the old road ends at the water.",
    "Nobody reads < or > signs aloud, nor pad, cls, sep, mask and unk.",
] * 20

ACCENTED = [*PROSE, *["The café of Zoë served crème brûlée."] * 20]

NASTY = [
    "",
    " ",
    "two  spaces and a trailing one ",
    " one before",
    "no\u00a0break\u00a0space",
    "a" * 300,
    "acute a´b and diaeresis a¨b become spaces",
    "``quoted'' text '' and `` alone “smart” ‘quotes’",
    "combining e\u0301 and x\u0327\u0323, and \u0301 alone, and a \u0308b",
    "\ufdfa is eighteen letters, \u3300 four",
    "中文字符 and 日本語。 한국어 \u1112\u1161\u11ab",
    "עברית العربية \u202etxet\u202c",
    "emoji 👩\u200d👩\u200d👧 and 🇫🇷 flags",
    "İstanbul ıI STRASSE straße ﬁne Ǆ ΣΑΣ",
    "tabs\tand\x0bothers\u2028here\u3000and\x85there\r\nnext",
    "literal ▁ mark and a▁b, Ġ and ##s",
    "9,999.50 1e999 --flag ../path £5 €7 (a-b) – 3/4",
    "nul \x00 and \x1b[31m and \ufeff and \ufffd",
]

USER_DEFINED = ["(", ")", '"', "-", ".", "–", "£", "€"]
STOCK_SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
FAIRSEQ_SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]

_SPACES = [*"    ", "  ", *"\t\u00a0\u3000\u2009\u2028\x0b\x0c\x1c", "\r\n", "\x85"]
_JOINTS = ["", "", "", *"-–/'’_\u200d\u00ad\u200b\u2060."]
_LETTERS = """
naïve café cafe\u0301 x\u0327\u0323 \u0301 Å Å Ω İstanbul ıI STRASSE straße ΣΑΣ ǅ ﬁsh ﬃ
Ⅷ ㌀ ﷺ ½ x² ａｂｃ 你好 日本語。 한국어 \u1112\u1161\u11ab עברית العربية \u202etxet\u202c ไทย
👩\u200d👩\u200d👧 🇫🇷 🤔 𩸽
Ϻ � \uffff \ufeff \x00 \x07 \x1b[31m the The river Bridge people don't
https://x.org/?q=1&r=#s <b>bold</b>
"""
_NUMBERS = "1, 9, 12, 1912, 9,999.50 1,000,000 1e999 3/4 50% £5 €7.50 ٣, ２, -0"
_SIGNS = "`` '' \" “ ” ( ) [ ] … ... ?! — ▁ a▁b Ġ ##s </w> ~ ^"
_SPECIALS = [*STOCK_SPECIALS, *FAIRSEQ_SPECIALS, "[mask]", "[ MASK ]"]


def nasty_corpus(count: int, seed: int, *, with_specials: bool) -> list[str]:
    """`count` texts of up to twelve parts, optionally with texts of special tokens."""
    draw = random.Random(seed)
    letters = [*_LETTERS.split(), "e" + "\u0301" * 40, "a" * 120]
    kinds = [letters, letters, _NUMBERS.split(), _SIGNS.split()]
    if with_specials:
        kinds.append(_SPECIALS)
    texts = []
    for _ in range(count):
        parts = [draw.choice(draw.choice(kinds)) for _ in range(draw.randrange(13))]
        spaces = [draw.choice(draw.choice([_SPACES, _SPACES, _JOINTS])) for _ in parts]
        texts.append("".join(map("".join, zip(parts, spaces, strict=True))))
    return texts


def wordpiece_vocab(do_lower_case: bool) -> dict[str, int]:
    """Words of PROSE and their letters; the special tokens of BERT do not have the first ids."""
    text = " ".join(PROSE)
    if do_lower_case:
        text = text.lower()
    letters = sorted(set(text) - {" "})
    words = filter(str.isalpha, re.split("[ ,.]", text))
    first, *others = sorted({*words}.difference(letters))
    tokens = [first, *STOCK_SPECIALS, *others, *letters, *map("##{}".format, letters)]
    return {token: number for number, token in enumerate(tokens)}


def save_bert(folder: Path, do_lower_case: bool, words: Sequence[str] = ()) -> None:
    """Save a BERT tokenizer folder as transformers does, with `words` as added tokens."""
    from transformers import BertTokenizer

    stock = BertTokenizer(vocab=wordpiece_vocab(do_lower_case), do_lower_case=do_lower_case)
    stock.add_tokens(list(words))
    stock.save_pretrained(str(folder))


def save_vocab_txt(folder: Path, do_lower_case: bool) -> None:
    folder.mkdir(exist_ok=True)
    vocab = "\n".join(wordpiece_vocab(do_lower_case)) + "\n"
    (folder / "vocab.txt").write_text(vocab, encoding="utf-8")


def save_roberta(folder: Path) -> None:
    """Save a RoBERTa tokenizer folder: byte-level BPE, special tokens of fairseq."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import RobertaTokenizer

    bare = ByteLevelBPETokenizer()
    bare.train_from_iterator(PROSE, 400, show_progress=False, special_tokens=FAIRSEQ_SPECIALS)
    model = json.loads(bare.to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    RobertaTokenizer(vocab=model["vocab"], merges=merges).save_pretrained(str(folder))


def save_fast_unigram(folder: Path, has_mask_token: bool = True) -> None:
    """Save a cased Unigram in ALBERT's layout; [MASK] may be added, as in DeBERTa-v3."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bare = Tokenizer(models.Unigram())
    bare.normalizer = normalizers.NFC()
    bare.pre_tokenizer = pre_tokenizers.Metaspace()
    tokens = [*SPECIAL_TOKENS] if has_mask_token else [*SPECIAL_TOKENS[:-1]]
    trainer = trainers.UnigramTrainer(
        vocab_size=200, special_tokens=tokens, unk_token="<unk>", show_progress=False
    )
    bare.train_from_iterator(PROSE, trainer)
    names = zip(ROLES, SPECIAL_TOKENS, strict=True)
    roles = {f"{role}_token": token for role, token in names}
    PreTrainedTokenizerFast(tokenizer_object=bare, **roles).save_pretrained(str(folder))


def save_albert(folder: Path, do_lower_case: bool, keep_accents: bool = False) -> None:
    trained = train_tokenizer(ACCENTED, 300, do_lower_case, keep_accents or "albert")
    vocab = [tuple(row) for row in json.loads(trained.backend_tokenizer.to_str())["model"]["vocab"]]
    options = {"do_lower_case": do_lower_case, "keep_accents": keep_accents}
    save_tokenizer(build_albert(vocab, **options), folder, max_length=77)


def save_script_safe(folder: Path, do_lower_case: bool, keep_accents: bool) -> None:
    trained = train_tokenizer(ACCENTED, 300, do_lower_case, keep_accents)
    save_tokenizer(trained, folder, max_length=77)


DIGIT_COMMA_TOKENS = {"▁1,": -4.0, "9,": -4.5, "▁1912,": -5.0, "12,": -6.0}


def save_digit_commas(folder: Path) -> None:
    text = [*PROSE, *["0 1 2 3 4 5 6 7 8 9 12 1912 999 ,"] * 20]
    trained = train_tokenizer(text, 300, do_lower_case=True)
    save_tokenizer(trained, folder, max_length=77)
    rows = [[token, score] for token, score in DIGIT_COMMA_TOKENS.items()]
    edit(folder / "tokenizer.json", lambda content: content["model"]["vocab"].extend(rows))


KINDS = {
    "albert uncased": lambda folder: save_albert(folder, True),
    "albert cased with accents": lambda folder: save_albert(folder, False, keep_accents=True),
    "script-safe uncased": lambda folder: save_script_safe(folder, True, keep_accents=False),
    "script-safe cased with accents": lambda folder: save_script_safe(
        folder, False, keep_accents=True
    ),
    "bert uncased": lambda folder: save_bert(folder, True),
    "bert with added words": lambda folder: save_bert(folder, True, ["old bridge", "£5"]),
    "vocab.txt cased": lambda folder: save_vocab_txt(folder, False),
    "roberta": save_roberta,
    "fast unigram": save_fast_unigram,
    "fast unigram with an added mask": lambda folder: save_fast_unigram(
        folder, has_mask_token=False
    ),
}
RELEASED = SHARED_DATA / "albert_vocab" / "30k-clean.rebuilt.model"
needs_released = pytest.mark.skipif(
    not RELEASED.is_file(), reason="needs ALBERT's released vocabulary"
)


def train_model(path: Path, sentences: list[str] = PROSE, **options: Any) -> Path:
    """Train a SentencePiece model in ALBERT's layout; `options` override the trainer arguments."""
    arguments = {
        "vocab_size": 120,
        "hard_vocab_limit": False,
        "pad_id": 0,
        "unk_id": 1,
        "bos_id": -1,
        "eos_id": -1,
        "normalization_rule_name": "nmt_nfkc",
        "control_symbols": ["[CLS]", "[SEP]", "[MASK]"],
        "user_defined_symbols": USER_DEFINED,
        "minloglevel": 2,
    }
    arguments |= options
    SentencePieceTrainer.train(
        sentence_iterator=iter(sentences), model_prefix=str(path.with_suffix("")), **arguments
    )
    return path


def edit(file: Path, change: Callable[[Any], Any]) -> None:
    content = json.loads(file.read_text(encoding="utf-8"))
    change(content)
    file.write_text(json.dumps(content), encoding="utf-8")


def encoded(encoder: TextEncoder, sentences: list[str]) -> list[list[int]]:
    ids, lengths, _ = encoder.encode_counted(sentences)
    assert ids.dtype == np.int32
    assert lengths.dtype == np.int64
    assert lengths.sum() == len(ids)
    return [token.tolist() for token in np.split(ids, lengths.cumsum()[:-1])]
