"""Text to documents of sentences: decoding, sentence splitting, signatures for the held-out split.

White space other than the line feed becomes a plain space. Everything replaced or skipped is
counted.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, pairwise
from typing import Literal, NamedTuple

from electra_albert.contracts import DataError
from electra_albert.corpus.near_duplicates import Signature, signatures_of
from electra_albert.data_files.streams import BYTE_ORDER_MARK, SURROGATE, cut_line, with_line_feeds

BadUtf8 = Literal["replace", "skip", "error"]
# A line is a sentence, a paragraph, a document, or a part of a paragraph.
Layout = Literal["sentences", "paragraphs", "documents", "wrapped"]
Record = tuple[str, Callable[[], str]]  # text; file and line

_TO_SPACE = dict.fromkeys(b"\0\t\x0b\x0c\r\x1c\x1d\x1e\x1f", " ")  # in ASCII
_SPACES = re.compile(r"[^\S \n]|\0")
_MAX_SENTENCES = 100_000  # per Document; a longer document continues in the next one
_MAX_CHARACTERS = 8 << 20
_MAX_PARAGRAPH = 1 << 16  # characters of joined lines, after which they are split before their end
_BATCH_CHARACTERS = 1 << 20  # of records whose signatures are computed at once, for speed


class Document(NamedTuple):
    """Consecutive sentences of one document."""

    signature: Signature  # puts near-duplicates into the same split
    sentences: list[str]  # stripped, none empty, no line ends inside
    continues: bool = False  # the next Document has more sentences of it


class Decoder(NamedTuple):
    """Cleans text in which undecodable bytes are lone surrogates; counts what it changes.

    Raises DataError for such a byte if bad_utf8 is "error".
    """

    bad_utf8: BadUtf8
    counts: Counter[str]

    def lines(self, text: str, location: Callable[[int], str]) -> str:
        """Clean whole lines; "skip" drops bad ones. `location`: file and line of a line number."""
        if self._is_bad(text, location):
            good_lines = []
            for line in text.split("\n"):
                if SURROGATE.search(line):
                    self.counts["skipped_lines"] += 1
                    self.counts["skipped_bytes"] += _byte_count(line)
                else:
                    good_lines.append(line)
            text = "\n".join(good_lines)
        return self._plain(text)

    def record(self, text: str, location: Callable[[], str]) -> str | None:
        """Clean the text of one record; None if it is skipped because of bad bytes."""
        text = self._cut(with_line_feeds(text))
        if self._is_bad(text, lambda _: location()):
            self.counts["skipped_documents"] += 1
            self.counts["skipped_bytes"] += _byte_count(text)
            return None
        return self._plain(text)

    def _is_bad(self, text: str, location: Callable[[int], str]) -> bool:
        """Whether text must be skipped because of undecodable bytes."""
        self.counts["nul_bytes"] += text.count("\0")
        if self.bad_utf8 == "replace":
            return False
        bad = SURROGATE.search(text)
        if bad and self.bad_utf8 == "error":
            where = location(text.count("\n", 0, bad.start()))
            problem = f"{bad[0]!a} is not a character"  # a lone surrogate in JSON
            if "\udc80" <= bad[0] <= "\udcff":
                problem = f"byte 0x{ord(bad[0]) & 0xFF:02x} cannot be decoded"
            raise DataError(f"{where}: {problem}; correct it, or set --bad_utf8 to replace or skip")
        return bad is not None

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
            halves = cut_line(line)
            if halves:
                lines[number : number + 1] = halves  # the loop visits the second one next
                self.counts["long_lines_cut"] += 1
        return "\n".join(lines)


def _byte_count(text: str) -> int:
    return len(SURROGATE.sub(" ", text).encode())


def counted(documents: Iterable[Document], counts: Counter[str]) -> Iterator[Document]:
    """The same documents, which are counted with their sentences."""
    for document in documents:
        counts["documents"] += not document.continues
        counts["sentences"] += len(document.sentences)
        yield document


def documents_of_lines(
    texts: Iterable[str], layout: Layout, counts: Counter[str]
) -> Iterator[Document]:
    """Documents of whole lines, separated by blank lines unless each line is one."""
    sentences: list[str] = []  # of the current document
    signature: Signature | None = None  # of the current document, once its first part was yielded
    paragraph = ""  # the current one, whose lines are joined
    for text in filter(None, texts):  # a text is empty if all its lines were skipped
        complete: list[list[str]] = []  # documents
        for line in map(str.strip, text[:-1].split("\n")):
            if not line:
                sentences += split_sentences(paragraph)
                paragraph = ""
            elif layout == "sentences":
                sentences.append(line)
            elif layout == "wrapped":
                paragraph = _joined(paragraph, line)
                if len(paragraph) > _MAX_PARAGRAPH:
                    first, *rest = split_sentences(paragraph)
                    *middle, paragraph = rest or [""]
                    sentences += [first, *middle]
            else:
                sentences += split_sentences(line)
                counts["paragraphs_split"] += 1
            if sentences and (not line or layout == "documents"):
                complete.append(sentences)
                sentences = []
        if complete and signature:
            yield Document(signature, complete.pop(0))
            signature = None
        yield from _with_signatures(complete)
        characters = sum(map(len, sentences))
        if len(sentences) > _MAX_SENTENCES or characters > _MAX_CHARACTERS:
            signature = signature or signatures_of([sentences])[0]
            yield Document(signature, sentences[:-1], continues=True)
            sentences = sentences[-1:]  # so that the last part is not empty
    sentences += split_sentences(paragraph)
    if signature:
        yield Document(signature, sentences)
    elif sentences:
        yield from _with_signatures([sentences])


def _joined(paragraph: str, line: str) -> str:
    """A paragraph and its next line; a word that is hyphenated between them keeps its hyphen."""
    is_hyphenated = paragraph.endswith("-") and not paragraph.endswith(" -")
    if not paragraph or is_hyphenated:
        return paragraph + line
    return f"{paragraph} {line}"


def documents_of_records(records: Iterable[Record], decoder: Decoder) -> Iterator[Document]:
    """One document per record that holds text; each line of a record is a paragraph."""
    batch: list[list[str]] = []
    characters = 0
    for raw, location in records:
        text = decoder.record(raw, location)
        if text is None:
            continue
        lines = [line for line in map(str.strip, text.split("\n")) if line]
        decoder.counts["documents_without_text"] += not lines
        decoder.counts["paragraphs_split"] += len(lines)
        if lines:
            sentences = chain.from_iterable(map(split_sentences, lines))
            batch.append(list(sentences))
            characters += len(text)
        if characters > _BATCH_CHARACTERS:
            yield from _with_signatures(batch)
            batch = []
            characters = 0
    yield from _with_signatures(batch)


def _with_signatures(documents: list[list[str]]) -> Iterator[Document]:
    """Documents with their signatures, long ones in several parts."""
    for signature, sentences in zip(signatures_of(documents), documents, strict=True):
        first = 0
        characters = 0
        for number, sentence in enumerate(sentences):
            if number - first >= _MAX_SENTENCES or characters > _MAX_CHARACTERS:
                yield Document(signature, sentences[first:number], continues=True)
                first = number
                characters = 0
            characters += len(sentence)
        yield Document(signature, sentences[first:])


# Sentence splitting: English rules, plus the full stops of scripts written without spaces.


def word_set(words: str) -> frozenset[str]:
    """The words of a text as a set."""
    return frozenset(words.split())


# A stop, closing quotes or brackets, footnote marks, white space; or an ideographic full stop,
# which needs no space. Only the first of several stops starts a match and nothing backtracks, so
# that a line of a million stops takes linear time.
_CANDIDATE = re.compile(
    r"""(?<![.!?…।؟])[.!?…।؟]++["'”’»)\]]*+(?:\[\d{1,3}\])*+(\s+)|[。！？]+["'”’」』）〉》]*"""
)
_WORD_BEFORE = re.compile(r"""[^\s"'“”‘’«»()\[\]]*$""")
_WORD_AFTER = re.compile(r"\w+")
# Signs that may precede the first word of a sentence.
_OPENING = "\"'“‘«([<*_-–—¿¡$€£¥#@§•·"
_MAX_ABBREVIATION = 24

# Abbreviations that never end a sentence.
_TITLES = word_set("""mr mrs ms dr prof st gen col maj capt cmdr lt sgt rev hon gov sen rep pres mt
    ft messrs mme mlle e.g i.e eg ie cf vs viz al approx ca resp incl esp wrt w.r.t aka a.k.a""")
# Abbreviations only if a number follows.
_BEFORE_NUMBER = word_set("""no nos b d c fl fig figs vol vols pp p eq eqs sec secs ch chap art par
    app ref refs tab ver v op ed jan feb mar apr jun jul aug sep sept oct nov dec""")
# Abbreviations also if a single letter follows: Fig. A.
_BEFORE_LETTER = word_set("fig figs eq eqs")
# Abbreviations that end a sentence only if the next word is a sentence starter.
_AMBIGUOUS = word_set("""etc inc ltd co corp jr sr bros dept univ assn est a.m p.m u.s u.k u.n ph.d
    b.c a.d ariz calif colo conn fla minn nev okla tenn wis wyo""")
# Words that belong to a name ending in a mark, as in Yahoo! Inc.
_COMPANY = word_set("Inc Ltd Corp Co LLC")
_STARTERS = word_set("""The A An This That These Those It He She We They You There Here In On At By
    For From To With As If When While After Before Since Because Although However But And Or So
    Then Thus Also His Her Its Their Our My What Who Why How Where Not No Only Some Many Most All
    Both Each Every Such Use See Note""")
_CLOSING_QUOTES = "\"'”’»"
# A name of up to three words and a verb of saying; before a colon it introduces the next quotation.
_SPEAKER = re.compile(
    r"(?:[A-Z][\w'’-]*+\.? ){1,3}"
    r"(?:said|says|asked|asks|cried|replied|answered|shouted|whispered|exclaimed|demanded|called"
    r"|inquired|wondered)\b(?!:)"
)


def split_sentences(paragraph: str) -> list[str]:
    """Split a paragraph into stripped, non-empty sentences; only white space between is dropped."""
    ends = [0]
    for match in _CANDIDATE.finditer(paragraph):
        if match[1] is None or _ends_sentence(paragraph, ends[-1], match):
            ends.append(match.end())
    ends.append(len(paragraph))
    sentences = [paragraph[start:end].strip() for start, end in pairwise(ends)]
    return list(filter(None, sentences))


def _ends_sentence(paragraph: str, start: int, match: re.Match[str]) -> bool:
    """Whether the stop at `match`, before white space, ends the sentence that starts at `start`."""
    after = match.end()
    while after < len(paragraph) and _may_open(paragraph[after]):
        after += 1
    if after == len(paragraph):
        return False
    following = paragraph[after]
    has_opening = after > match.end()
    may_start = following.isalnum() or has_opening
    if following.islower() or not may_start:
        return False
    stop = match[0]
    has_mark = "!" in stop or "?" in stop
    if has_mark or stop[0] not in ".…":
        return not _continues_after_mark(paragraph, match, after)
    dots = len(stop) - len(stop.lstrip(".…"))
    earliest = max(start, match.start() - _MAX_ABBREVIATION)
    before: str = _WORD_BEFORE.findall(paragraph, earliest, match.start())[0]  # may be empty
    has_ellipsis = dots > 1 or stop[0] == "…"
    if has_ellipsis or not before:
        is_lone_stop = dots == 1 and not before
        return is_lone_stop or _next_word(paragraph, after) in _STARTERS
    return _ends_after_word(paragraph, start, match.start() - len(before), before, after)


def _may_open(sign: str) -> bool:
    return sign in _OPENING or unicodedata.category(sign) == "So"  # emoji


def _continues_after_mark(paragraph: str, match: re.Match[str], after: int) -> bool:
    """Whether a sentence continues after "!" or "?", with the speaker or the rest of a name."""
    word = _next_word(paragraph, after)
    if not word or after > match.end() or word in _STARTERS:
        return False
    if match[0].rstrip()[-1] in _CLOSING_QUOTES:
        return _SPEAKER.match(paragraph, after) is not None
    return word in _COMPANY


def _ends_after_word(paragraph: str, start: int, word_start: int, word: str, after: int) -> bool:
    """Whether a full stop after `word` ends the sentence; the next word starts at `after`."""
    lowered = word.lower()
    is_numbered = lowered in _BEFORE_NUMBER and paragraph[after].isdigit()
    is_lettered = lowered in _BEFORE_LETTER and re.match(r"[A-Z]\b", paragraph[after : after + 2])
    is_list_item = word.isdigit() and not paragraph[start:word_start].strip()
    if lowered in _TITLES or is_numbered or is_lettered or is_list_item:
        return False
    is_initial = len(word) == 1 and word.isupper()
    parts = word.split(".")
    has_single_letters = all(len(part) == 1 and part.isalpha() for part in parts)
    is_dotted = has_single_letters and len(parts) > 1  # U.S
    if is_initial or is_dotted or lowered in _AMBIGUOUS:
        return _next_word(paragraph, after) in _STARTERS
    return True


def _next_word(paragraph: str, start: int) -> str:
    match = _WORD_AFTER.match(paragraph, start)
    if match:
        return match[0]
    return ""
