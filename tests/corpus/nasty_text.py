"""A corpus of everything that tokenizers are known to disagree on, drawn from a fixed seed."""

from __future__ import annotations

import random


def _words(text: str) -> list[str]:
    return text.split()


_SPACES = [*"    ", "  ", *"\t\u00a0\u3000\u2009\u2028\x0b\x0c\x1c", "\r\n", "\x85"]
_JOINTS = ["", "", "", *"-–/'’_\u200d\u00ad\u200b\u2060."]
_LETTERS = [
    *("naïve", "café", "cafe\u0301", "x\u0327\u0323", "e" + "\u0301" * 40, "\u0301", "Å", "Å", "Ω"),
    *("İstanbul", "ıI", "STRASSE", "straße", "ΣΑΣ", "ǅ", "ﬁsh", "ﬃ", "Ⅷ", "㌀", "ﷺ", "½", "x²", "ａｂｃ"),
    *("你好", "日本語。", "한국어", "\u1112\u1161\u11ab", "עברית", "العربية", "\u202etxet\u202c", "ไทย"),
    *("👩\u200d👩\u200d👧", "🇫🇷", "🤔", "𩸽", "Ϻ", "\ufffd", "\uffff", "\ufeff", "\x00", "\x07", "\x1b[31m"),
    *("the", "The", "river", "Bridge", "people", "a" * 120, "don't", "https://x.org/?q=1&r=#s", "<b>bold</b>"),
]
_NUMBERS = _words("1, 9, 12, 1912, 9,999.50 1,000,000 1e999 3/4 50% £5 €7.50 ٣, ２, -0")
_SIGNS = _words("`` '' \" “ ” ( ) [ ] … ... ?! — ▁ a▁b Ġ ##s </w> ~ ^")
_SPECIALS = [*_words("[MASK] [SEP] [CLS] [PAD] [UNK] <mask> <pad> <unk> <s> </s> [mask]"), "[ MASK ]"]


def nasty_corpus(count: int, seed: int, *, with_specials: bool) -> list[str]:
    """`count` texts of up to twelve parts, those of special tokens among them only where asked for."""
    draw = random.Random(seed)
    kinds = [_LETTERS, _LETTERS, _NUMBERS, _SIGNS] + [_SPECIALS] * with_specials
    texts = []
    for _ in range(count):
        parts = [draw.choice(draw.choice(kinds)) for _ in range(draw.randrange(13))]
        texts.append("".join(part + draw.choice(draw.choice([_SPACES, _SPACES, _JOINTS])) for part in parts))
    return texts
