"""Lines and records of text to documents of sentences, each with the group that keeps it on one side of the split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from electra_albert.corpus.decoding import Decoder
from electra_albert.corpus.near_duplicates import HEAD_CHARACTERS, Group, groups_of, name_group
from electra_albert.corpus.sentences import split_sentences

_MAX_SENTENCES = 100_000  # of one Document; the same document goes on in the next
_MAX_CHARACTERS = 8 << 20
_HEAD_SENTENCES = 400  # that are looked at for the group
_GATHERED_CHARACTERS = 1 << 20  # of records that get their groups together, which is much faster


class Document(NamedTuple):
    """Consecutive sentences of one document."""

    group: Group  # documents of one group stay on one side of the held-out split
    sentences: list[str]  # stripped, none empty, no line ends inside
    continues: bool = False  # the same document goes on in the next Document


class Record(NamedTuple):
    """The text of one document, as a file of records holds it."""

    raw: bytes | None  # None where the field is null
    place: Callable[[], str]  # where a user finds it


class NamedRecord(NamedTuple):
    """A document that is split already, and the name of the group it is of."""

    source: str
    raw: bytes  # a sentence a line
    place: Callable[[], str]


def documents_of_lines(texts: Iterable[str], split: bool, counts: Counter[str]) -> Iterator[Document]:
    """Documents between blank lines. `texts` are whole lines, of one sentence or, where `split`, of one paragraph."""
    sentences: list[str] = []  # of the document that has not ended
    group: Group | None = None  # its own, once a first part of it was handed on
    for text in filter(None, texts):  # nothing is left of a run whose lines are all skipped
        ended: list[list[str]] = []
        for line in map(str.strip, text[:-1].split("\n")):
            if line and not split:
                sentences.append(line)
            elif line:
                sentences += split_sentences(line)
                counts["paragraphs_split"] += 1
            elif sentences:
                ended.append(sentences)
                sentences = []
        if ended and group is not None:
            yield _counted(Document(group, ended.pop(0)), counts)
            group = None
        yield from _grouped(ended, counts)
        if _is_long(sentences):
            group = groups_of([_head(sentences)])[0] if group is None else group
            last = sentences.pop()  # held back, so that a part follows
            yield _counted(Document(group, sentences, continues=True), counts)
            sentences = [last]
    if sentences:
        group = groups_of([_head(sentences)])[0] if group is None else group
        yield _counted(Document(group, sentences), counts)


def documents_of_records(records: Iterable[Record], decoder: Decoder) -> Iterator[Document]:
    """A document for each record that holds text; a line of it is a paragraph."""
    counts = decoder.counts
    gathered: list[list[str]] = []
    characters = 0
    for record in records:
        text = "" if record.raw is None else decoder.record(record.raw, record.place)
        if text is None:
            continue
        paragraphs = [line for line in map(str.strip, text.split("\n")) if line]
        counts["paragraphs_split"] += len(paragraphs)
        counts["documents_without_text"] += not paragraphs
        if paragraphs:
            gathered.append([sentence for paragraph in paragraphs for sentence in split_sentences(paragraph)])
            characters += len(text)
        if characters > _GATHERED_CHARACTERS:
            yield from _grouped(gathered, counts)
            gathered, characters = [], 0
    yield from _grouped(gathered, counts)


def documents_of_named(records: Iterable[NamedRecord], decoder: Decoder) -> Iterator[Document]:
    """The documents of our own form, which come with sentences and the name of their group."""
    counts = decoder.counts
    for record in records:
        text = decoder.record(record.raw, record.place)
        if text is None:
            continue
        sentences = [line for line in map(str.strip, text.split("\n")) if line]
        counts["documents_without_text"] += not sentences
        if sentences:
            yield _counted(Document(name_group(record.source), sentences), counts)


def _grouped(documents: list[list[str]], counts: Counter[str]) -> Iterator[Document]:
    """Documents, with their groups found together, a long one in parts."""
    groups = groups_of(list(map(_head, documents))) if documents else []
    for group, sentences in zip(groups, documents, strict=True):
        *parts, last = _parts(sentences) if _is_long(sentences) else [sentences]
        for part in parts:
            yield _counted(Document(group, part, continues=True), counts)
        yield _counted(Document(group, last), counts)


def _parts(sentences: list[str]) -> Iterator[list[str]]:
    part: list[str] = []
    characters = 0
    for sentence in sentences:
        if len(part) >= _MAX_SENTENCES or characters > _MAX_CHARACTERS:
            yield part
            part, characters = [], 0
        part.append(sentence)
        characters += len(sentence)
    yield part


def _is_long(sentences: list[str]) -> bool:
    return len(sentences) > _MAX_SENTENCES or sum(map(len, sentences)) > _MAX_CHARACTERS


def _head(sentences: list[str]) -> str:
    """The beginning of a document, which decides its group."""
    return " ".join(sentences[:_HEAD_SENTENCES])[:HEAD_CHARACTERS]


def _counted(document: Document, counts: Counter[str]) -> Document:
    counts["documents"] += not document.continues
    counts["sentences"] += len(document.sentences)
    return document
