"""Run as a script: read a tokenizer.json from the standard input and tokenise a few texts; status 1 where that fails.

A process of its own, because the native code behind such a file can panic, hang or fill memory, none of which the
process that means to use the tokenizer could survive.
"""

from __future__ import annotations

import string
import sys

MEMORY_BYTES = 4 << 30  # of addresses
TOKENS_PER_CHARACTER = 64  # the longest honest answer: U+FDFA becomes 18 characters of up to 3 bytes
TEXTS = (
    "",
    " ",
    "a",
    "The quick brown fox jumps over the lazy dog.",
    string.printable,
    "a" * 120 + "!",  # sends a pattern such as (a+)+$ back and forth
    "(a+a) " * 20,
    "1234567890 9,999.50 1e999 3/4 50%",
    "don't stop-me now… “quoted” ``text''",
    "e\u0301 x\u0327\u0323 \u0301",
    "\ufdfa \u3300 ﬁ Ⅷ",
    "中文字符 and 日本語。",
    "한국어 \u1112\u1161\u11ab",
    "emoji 👩\u200d👩\u200d👧 🇫🇷",
    "İstanbul STRASSE straße ΣΑΣ",
    "עברית العربية \u202etxet",
    "tabs\tand\x0bothers\u2028here\u3000and\x85there\r\n",
    "\x00\x07\x1b[31m\ufeff\ufffd\uffff",
    "▁ Ġ ## </w> a▁b",
    "[MASK] [SEP] [CLS] [PAD] [UNK] <mask> <s> </s> <pad> <unk>",
)


def find_problem(content: str) -> str:
    """What goes wrong with the tokenizer, in a few words, or nothing."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(content)
    for is_text in (False, True):
        tokenizer.encode_special_tokens = is_text
        for text in TEXTS:
            count = len(tokenizer.encode(text, add_special_tokens=not is_text).ids)
            if count > TOKENS_PER_CHARACTER * (len(text) + 1):
                return f"it makes {count} tokens of {len(text)} characters"
        tokenizer.encode(TEXTS[3], TEXTS[4])
    return ""


def main() -> int:
    """Print what is wrong in one line; 0 where nothing is. What native code raises ends the process, its name last."""
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    problem = find_problem(sys.stdin.buffer.read().decode("utf-8"))
    print(problem)
    return 1 if problem else 0


if __name__ == "__main__":
    raise SystemExit(main())
