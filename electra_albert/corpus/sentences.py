"""Split a paragraph into sentences: English rules, plus the full stops of scripts written without spaces."""

from __future__ import annotations

import re
import unicodedata


def word_set(words: str) -> frozenset[str]:
    """The words of a text as a set: how long lists are written in this package."""
    return frozenset(words.split())


# A full stop, what closes with it, footnote marks, and the white space after it; or an ideographic full stop, which
# needs no space.
# Only the first stop of a run starts a match and nothing is given back, so a line of a million stops takes linear time.
_CANDIDATE = re.compile(r"""(?<![.!?…।؟])[.!?…।؟]++["'”’»)\]]*+(?:\[\d{1,3}\])*+(\s+)|[。！？]+["'”’」』）〉》]*""")
_WORD_BEFORE = re.compile(r"""[^\s"'“”‘’«»()\[\]]*$""")
_WORD_AFTER = re.compile(r"\w+")
_OPENING = "\"'“‘«([<*_-–—¿¡$€£¥#@§•·"
_LONGEST_ABBREVIATION = 24

# Never the last word of a sentence.
_TITLES = word_set(
    "mr mrs ms dr prof st gen col maj capt cmdr lt sgt rev hon gov sen rep pres mt ft messrs mme mlle "
    "e.g i.e eg ie cf vs viz al approx ca resp incl esp wrt w.r.t aka a.k.a"
)
# An abbreviation only where a number follows.
_BEFORE_NUMBER = word_set(
    "no nos b d c fl fig figs vol vols pp p eq eqs sec secs ch chap art par app ref refs tab ver v op ed "
    "jan feb mar apr jun jul aug sep sept oct nov dec"
)
# An abbreviation also where a single letter follows: Fig. A.
_BEFORE_LETTER = word_set("fig figs eq eqs")
# May end a sentence or not: it does where the next word is one that opens sentences.
_UNDECIDED = word_set(
    "etc inc ltd co corp jr sr bros dept univ assn est a.m p.m u.s u.k u.n ph.d b.c a.d "
    "ariz calif colo conn fla minn nev okla tenn wis wyo"
)
# Behind a name that ends in a mark, as in Yahoo! Inc.
_COMPANY = word_set("Inc Ltd Corp Co LLC")
_OPENERS = word_set(
    "The A An This That These Those It He She We They You There Here In On At By For From To With As If When While "
    "After Before Since Because Although However But And Or So Then Thus Also His Her Its Their Our My What Who Why "
    "How Where Not No Only Some Many Most All Both Each Every Such Use See Note"
)
_CLOSING_QUOTES = "\"'”’»"
# A name of up to three words, and a verb that goes with what was said; before a colon, with what will be.
_SPEAKER = re.compile(
    r"(?:[A-Z][\w'’-]*+\.? ){1,3}"
    r"(?:said|says|asked|asks|cried|replied|answered|shouted|whispered|exclaimed|demanded|called|inquired|wondered)\b(?!:)"
)


def split_sentences(paragraph: str) -> list[str]:
    """The sentences of one paragraph, stripped, none empty; no character but white space between them is lost."""
    sentences = []
    start = 0
    for match in _CANDIDATE.finditer(paragraph):
        if match.group(1) is None or _ends_sentence(paragraph, start, match):
            sentence = paragraph[start : match.end()].strip()
            if sentence:
                sentences.append(sentence)
            start = match.end()
    rest = paragraph[start:].strip()
    if rest:
        sentences.append(rest)
    return sentences


def _ends_sentence(paragraph: str, start: int, match: re.Match[str]) -> bool:
    """Whether the stop at `match`, followed by white space, ends the sentence that began at `start`."""
    after = match.end()
    while after < len(paragraph) and _opens(paragraph[after]):
        after += 1
    if after == len(paragraph):
        return False
    following = paragraph[after]
    if following.islower() or not (following.isalnum() or after > match.end()):
        return False
    stop = match.group()
    if stop[0] not in ".…" or "!" in stop or "?" in stop:
        return not _belongs_to_mark(paragraph, match, after)
    dots = len(stop) - len(stop.lstrip(".…"))
    earliest = max(start, match.start() - _LONGEST_ABBREVIATION)
    found = _WORD_BEFORE.search(paragraph, earliest, match.start())
    before = found.group() if found else ""
    if dots > 1 or stop[0] == "…" or not before:
        return _is_opener(paragraph, after) or (not before and dots == 1)
    return _ends_after_word(paragraph, start, match.start() - len(before), before, after)


def _belongs_to_mark(paragraph: str, match: re.Match[str], after: int) -> bool:
    """Whether what follows a "!" or "?" goes on with it: who said the quoted words, or the rest of a company's name."""
    found = _WORD_AFTER.match(paragraph, after)
    if found is None or after > match.end() or found.group() in _OPENERS:
        return False
    if match.group().rstrip()[-1] in _CLOSING_QUOTES:
        return _SPEAKER.match(paragraph, after) is not None
    return found.group() in _COMPANY


def _opens(character: str) -> bool:
    """Whether a sentence may begin with this before its first word: quotes, brackets, currencies, emoji."""
    return character in _OPENING or unicodedata.category(character) == "So"


def _ends_after_word(paragraph: str, start: int, word_start: int, word: str, after: int) -> bool:
    """Whether a single full stop after `word` ends a sentence; `after` is where the next word begins."""
    lowered = word.lower()
    if lowered in _TITLES:
        return False
    if lowered in _BEFORE_NUMBER and paragraph[after].isdigit():
        return False
    if lowered in _BEFORE_LETTER and re.match(r"[A-Z]\b", paragraph[after : after + 2]):
        return False
    if word.isdigit() and not paragraph[start:word_start].strip():
        return False  # the number of a list item
    is_initial = len(word) == 1 and word.isupper()
    if is_initial or lowered in _UNDECIDED or _is_dotted(word):
        return _is_opener(paragraph, after)
    return True


def _is_dotted(word: str) -> bool:
    """True for U.S, D.C, J.R.R: single letters between dots."""
    return "." in word and all(len(piece) == 1 and piece.isalpha() for piece in word.split("."))


def _is_opener(paragraph: str, after: int) -> bool:
    found = _WORD_AFTER.match(paragraph, after)
    return found is not None and found.group() in _OPENERS
