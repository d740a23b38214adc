"""The entities that a row of tags marks, by the rules of the CoNLL shared tasks' scoring script."""

from __future__ import annotations

from collections.abc import Collection, Sequence

Entity = tuple[int, int, str]  # first word, one past the last word, type

_OUTSIDE = "O"
_BEGINS = frozenset("BSU")  # a new entity whatever stood before
_ENDS = frozenset("ESLU")  # nothing goes on after it
_GOES_ON = frozenset("I")
_PREFIXES = _BEGINS | _ENDS | _GOES_ON


def entities(tags: Sequence[str]) -> set[Entity]:
    """All entities (first word, one past the last, type) of one sentence in IOB1, IOB2, IOBES or BILOU tags.

    Faulty rows mean what the CoNLL script makes of them: a tag that should go on with an entity begins one where none
    is open or the open one has another type, and an entity that is not closed ends where the next tag leaves it.
    """
    found: set[Entity] = set()
    start, open_type = 0, None
    for place, tag in enumerate([*tags, _OUTSIDE]):
        prefix, kind = _parts(tag)
        if open_type is not None and (prefix in _BEGINS or kind != open_type):
            found.add((start, place, open_type))
            open_type = None
        if kind is None:
            continue
        if open_type is None:
            start, open_type = place, kind
        if prefix in _ENDS:
            found.add((start, place + 1, open_type))
            open_type = None
    return found


def is_entity_tagging(labels: Collection[str]) -> bool:
    """Whether the tags mark entities, so that they can be counted; plain tags, such as parts of speech, do not."""
    marks = [label for label in labels if label != _OUTSIDE]
    # A bare B or I without a type counts only beside O: it may be a tag of its own.
    is_marked = all(mark[:1] in _PREFIXES and (mark[1:2] == "-" or mark[1:] == "") for mark in marks)
    return is_marked and bool(marks) and (_OUTSIDE in labels or all("-" in mark for mark in marks))


def _parts(tag: str) -> tuple[str, str | None]:
    """Prefix and type of a tag; the type is None outside of entities and empty where the tag names none."""
    prefix, _, kind = tag.partition("-")
    if tag == _OUTSIDE:
        return prefix, None
    if prefix not in _PREFIXES:
        raise ValueError(f"tag {tag!r} marks no entity; use O, or a prefix B- I- E- S- L- U- and a type")
    return prefix, kind
