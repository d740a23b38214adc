"""Text to documents of sentences: decoding, MinHash signatures for the held-out split, sentence splitting.

White space other than the line feed becomes a plain space. Everything replaced or skipped is counted.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Literal, NamedTuple

from electra_albert.contracts import DataError
from electra_albert.corpus.near_duplicates import HEAD_CHARACTERS, Signature, signatures_of
from electra_albert.data_files.streams import BYTE_ORDER_MARK, MAX_LINE_BYTES, SURROGATE, cut_line, with_line_feeds

BadUtf8 = Literal["replace", "skip", "error"]
# A line is a sentence, a paragraph, a document, or a part of a paragraph.
Layout = Literal["sentences", "paragraphs", "documents", "wrapped"]
Record = tuple[str | None, Callable[[], str]]  # text of a record, None if it is null; its file and line

_TO_SPACE = {c: " " for c in range(33) if chr(c).isspace() and c != ord("\n")} | {0: " "}  # in ASCII
_SPACES = re.compile(r"[^\S \n]|\0")
_MAX_SENTENCES = 100_000  # per Document; a longer document continues in the next one
_MAX_CHARACTERS = 8 << 20
_MAX_PARAGRAPH = 1 << 16  # characters of joined lines, after which they are split before their end
_HEAD_SENTENCES = 400  # sentences used for the signature
_BATCH_CHARACTERS = 1 << 20  # of records whose signatures are computed at once, for speed


class Document(NamedTuple):
    """Consecutive sentences of one document."""

    signature: Signature  # puts near-duplicates into the same split
    sentences: list[str]  # stripped, none empty, no line ends inside
    continues: bool = False  # the next Document has more sentences of it


class Decoder(NamedTuple):
    """Cleans text in which undecodable bytes are lone surrogates (surrogateescape); counts what it changes."""

    bad_utf8: BadUtf8
    counts: Counter[str]

    def lines(self, text: str, location: Callable[[int], str]) -> str:
        """Clean whole lines; "skip" drops bad ones. `location` maps a line number in `text` to file and line."""
        if self._is_bad(text, location):
            bad = [line for line in text.split("\n") if SURROGATE.search(line)]
            self.counts["skipped_lines"] += len(bad)
            self.counts["skipped_bytes"] += sum(map(_byte_count, bad))
            text = "\n".join(line for line in text.split("\n") if not SURROGATE.search(line))
        return self._plain(text)

    def record(self, text: str, location: Callable[[], str]) -> str | None:
        """Clean the text of one record; None if it is skipped because of bad bytes. Raises DataError like `lines`."""
        text = with_line_feeds(text)
        text = self._cut(text) if len(text) > MAX_LINE_BYTES // 4 else text
        if self._is_bad(text, lambda _: location()):
            self.counts["skipped_documents"] += 1
            self.counts["skipped_bytes"] += _byte_count(text)
            return None
        return self._plain(text)

    def _is_bad(self, text: str, location: Callable[[int], str]) -> bool:
        """Whether text must be skipped because of undecodable bytes. Raises DataError if bad_utf8 is "error"."""
        self.counts["nul_bytes"] += text.count("\0")
        if self.bad_utf8 == "replace" or text.isascii() or not (found := SURROGATE.search(text)):
            return False
        if self.bad_utf8 == "error":
            byte = f"byte 0x{ord(found.group()) & 0xFF:02x} is not UTF-8"
            where = location(text.count("\n", 0, found.start()))
            raise DataError(f"{where}: {byte}; correct it, or set --bad_utf8 to replace or skip")
        return True

    def _plain(self, text: str) -> str:
        if text.isascii():
            return text.translate(_TO_SPACE)
        text, invalid = SURROGATE.subn("\ufffd", text)
        self.counts["invalid_bytes"] += invalid
        self.counts["byte_order_marks"] += text.count(BYTE_ORDER_MARK)
        return _SPACES.sub(" ", text.replace(BYTE_ORDER_MARK, ""))

    def _cut(self, text: str) -> str:
        lines = text.split("\n")
        for number, line in enumerate(lines):
            if found := cut_line(line):
                lines[number : number + 1] = found  # the loop visits the rest next
                self.counts["long_lines_cut"] += 1
        return "\n".join(lines)


def _byte_count(text: str) -> int:
    return len(SURROGATE.sub(" ", text).encode())


def documents_of_lines(texts: Iterable[str], layout: Layout, counts: Counter[str]) -> Iterator[Document]:
    """Documents of whole lines, separated by blank lines unless each line is one."""
    sentences: list[str] = []  # of the current document
    signature: Signature | None = None  # of the current document, once its first part was yielded
    begun = ""  # of the current paragraph, whose lines are joined
    for text in filter(None, texts):  # a text is empty if all its lines were skipped
        ended: list[list[str]] = []
        for line in map(str.strip, text[:-1].split("\n")):
            if line and layout == "wrapped":
                begun = _joined(begun, line)
                if len(begun) > _MAX_PARAGRAPH:
                    first, *rest = split_sentences(begun)
                    *complete, begun = rest or [""]
                    sentences += [first, *complete]
            elif line:
                sentences += [line] if layout == "sentences" else split_sentences(line)
            if begun and not line:
                sentences += split_sentences(begun)
                begun = ""
            counts["paragraphs_split"] += bool(line) and layout in ("paragraphs", "documents")
            if sentences and (not line or layout == "documents"):
                ended.append(sentences)
                sentences = []
        if ended and signature is not None:
            yield Document(signature, ended.pop(0))
            signature = None
        yield from _with_signatures(ended)
        if _is_long(sentences):
            signature = signature or _signatures([sentences])[0]
            yield Document(signature, sentences[:-1], continues=True)
            sentences = sentences[-1:]  # kept, so that the last part is not empty
    sentences += split_sentences(begun)
    if signature is not None and sentences:
        yield Document(signature, sentences)
    elif sentences:
        yield from _with_signatures([sentences])


def _joined(begun: str, line: str) -> str:
    """A paragraph and its next line; a word that is hyphenated between them keeps its hyphen."""
    is_hyphenated = begun.endswith("-") and not begun.endswith(" -")
    return f"{begun}{line}" if is_hyphenated or not begun else f"{begun} {line}"


def documents_of_records(records: Iterable[Record], decoder: Decoder) -> Iterator[Document]:
    """One document per record that holds text; each line of a record is a paragraph."""
    counts = decoder.counts
    batch: list[list[str]] = []
    characters = 0
    for raw, location in records:
        text = "" if raw is None else decoder.record(raw, location)
        if text is None:
            continue
        lines = [line for line in map(str.strip, text.split("\n")) if line]
        counts["documents_without_text"] += not lines
        counts["paragraphs_split"] += len(lines)
        if lines:
            batch.append([sentence for line in lines for sentence in split_sentences(line)])
            characters += len(text)
        if characters > _BATCH_CHARACTERS:
            yield from _with_signatures(batch)
            batch, characters = [], 0
    yield from _with_signatures(batch)


def _with_signatures(documents: list[list[str]]) -> Iterator[Document]:
    """Documents with their signatures, long ones in several parts."""
    for signature, sentences in zip(_signatures(documents) if documents else (), documents, strict=True):
        first = characters = 0
        for number, sentence in enumerate(sentences if _is_long(sentences) else ()):
            if number - first >= _MAX_SENTENCES or characters > _MAX_CHARACTERS:
                yield Document(signature, sentences[first:number], continues=True)
                first, characters = number, 0
            characters += len(sentence)
        yield Document(signature, sentences[first:])


def _is_long(sentences: list[str]) -> bool:
    return len(sentences) > _MAX_SENTENCES or sum(map(len, sentences)) > _MAX_CHARACTERS


def _signatures(documents: list[list[str]]) -> list[Signature]:
    """The signature of each document, computed from its first sentences."""
    return signatures_of([" ".join(sentences[:_HEAD_SENTENCES])[:HEAD_CHARACTERS] for sentences in documents])


# Sentence splitting: English rules, plus the full stops of scripts written without spaces.


def word_set(words: str) -> frozenset[str]:
    """The words of a text as a set."""
    return frozenset(words.split())


# A stop, closing quotes or brackets, footnote marks, white space; or an ideographic full stop, which needs no space.
# Only the first stop of several starts a match and nothing backtracks, so a line of a million stops takes linear time.
_CANDIDATE = re.compile(r"""(?<![.!?…।؟])[.!?…।؟]++["'”’»)\]]*+(?:\[\d{1,3}\])*+(\s+)|[。！？]+["'”’」』）〉》]*""")
_WORD_BEFORE = re.compile(r"""[^\s"'“”‘’«»()\[\]]*$""")
_WORD_AFTER = re.compile(r"\w+")
# Signs that may precede the first word of a sentence.
_OPENING = "\"'“‘«([<*_-–—¿¡$€£¥#@§•·"
_MAX_ABBREVIATION = 24

# Abbreviations that never end a sentence.
_TITLES = word_set("""mr mrs ms dr prof st gen col maj capt cmdr lt sgt rev hon gov sen rep pres mt ft messrs mme
    mlle e.g i.e eg ie cf vs viz al approx ca resp incl esp wrt w.r.t aka a.k.a""")
# Abbreviations only if a number follows.
_BEFORE_NUMBER = word_set("""no nos b d c fl fig figs vol vols pp p eq eqs sec secs ch chap art par app ref refs
    tab ver v op ed jan feb mar apr jun jul aug sep sept oct nov dec""")
# Abbreviations also if a single letter follows: Fig. A.
_BEFORE_LETTER = word_set("fig figs eq eqs")
# Abbreviations that end a sentence only if the next word is a sentence starter.
_AMBIGUOUS = word_set("""etc inc ltd co corp jr sr bros dept univ assn est a.m p.m u.s u.k u.n ph.d b.c a.d ariz
    calif colo conn fla minn nev okla tenn wis wyo""")
# Words that belong to a name ending in a mark, as in Yahoo! Inc.
_COMPANY = word_set("Inc Ltd Corp Co LLC")
_STARTERS = word_set("""The A An This That These Those It He She We They You There Here In On At By For From To With
    As If When While After Before Since Because Although However But And Or So Then Thus Also His Her Its Their Our
    My What Who Why How Where Not No Only Some Many Most All Both Each Every Such Use See Note""")
_CLOSING_QUOTES = "\"'”’»"
# A name of up to three words and a verb of saying; before a colon it introduces the next quotation instead.
_SPEAKER = re.compile(
    r"(?:[A-Z][\w'’-]*+\.? ){1,3}"
    r"(?:said|says|asked|asks|cried|replied|answered|shouted|whispered|exclaimed|demanded|called|inquired|wondered)\b(?!:)"
)


def split_sentences(paragraph: str) -> list[str]:
    """Split a paragraph into stripped, non-empty sentences; only white space between them is dropped."""
    ends = [0]
    for match in _CANDIDATE.finditer(paragraph):
        if match.group(1) is None or _ends_sentence(paragraph, ends[-1], match):
            ends.append(match.end())
    return list(filter(None, (paragraph[start:end].strip() for start, end in pairwise([*ends, len(paragraph)]))))


def _ends_sentence(paragraph: str, start: int, match: re.Match[str]) -> bool:
    """Whether the stop at `match`, followed by white space, ends the sentence that starts at `start`."""
    after = match.end()
    while (sign := paragraph[after : after + 1]) and (sign in _OPENING or unicodedata.category(sign) == "So"):  # emoji
        after += 1
    if after == len(paragraph):
        return False
    following = paragraph[after]
    if following.islower() or not (following.isalnum() or after > match.end()):
        return False
    stop = match.group()
    if stop[0] not in ".…" or "!" in stop or "?" in stop:
        return not _continues_after_mark(paragraph, match, after)
    dots = len(stop) - len(stop.lstrip(".…"))
    earliest = max(start, match.start() - _MAX_ABBREVIATION)
    found = _WORD_BEFORE.search(paragraph, earliest, match.start())
    before = found.group() if found else ""
    if dots > 1 or stop[0] == "…" or not before:
        return _starts_sentence(paragraph, after) or (not before and dots == 1)
    return _ends_after_word(paragraph, start, match.start() - len(before), before, after)


def _continues_after_mark(paragraph: str, match: re.Match[str], after: int) -> bool:
    """Whether the sentence continues after "!" or "?", with the speaker of a quotation or the rest of a name."""
    found = _WORD_AFTER.match(paragraph, after)
    if found is None or after > match.end() or found.group() in _STARTERS:
        return False
    if match.group().rstrip()[-1] in _CLOSING_QUOTES:
        return _SPEAKER.match(paragraph, after) is not None
    return found.group() in _COMPANY


def _ends_after_word(paragraph: str, start: int, word_start: int, word: str, after: int) -> bool:
    """Whether a single full stop after `word` ends the sentence; the next word starts at `after`."""
    lowered = word.lower()
    is_numbered = lowered in _BEFORE_NUMBER and paragraph[after].isdigit()
    is_lettered = lowered in _BEFORE_LETTER and re.match(r"[A-Z]\b", paragraph[after : after + 2])
    is_list_item = word.isdigit() and not paragraph[start:word_start].strip()
    if lowered in _TITLES or is_numbered or is_lettered or is_list_item:
        return False
    is_initial = len(word) == 1 and word.isupper()
    is_dotted = "." in word and all(len(part) == 1 and part.isalpha() for part in word.split("."))  # J.R.R, U.S, D.C
    return not (is_initial or is_dotted or lowered in _AMBIGUOUS) or _starts_sentence(paragraph, after)


def _starts_sentence(paragraph: str, after: int) -> bool:
    found = _WORD_AFTER.match(paragraph, after)
    return found is not None and found.group() in _STARTERS
