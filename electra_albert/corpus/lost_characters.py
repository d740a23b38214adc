"""Combining marks and compatibility forms that a tokenizer's normalizer takes out of text, counted by script."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Mapping

_MARKS = "marks_removed_from_"  # and the script of the characters that had them
_FORMS = "compatibility_forms_rewritten"


def count_lost(text: str, normalized: str) -> Counter[str]:
    """What `text` has and `normalized` has not, by name of the count; case does not matter."""
    if normalized == text or normalized == text.lower():
        return Counter()
    return _count(text) - _count(normalized)


def _count(text: str) -> Counter[str]:
    found: Counter[str] = Counter()
    found[_FORMS] = sum(unicodedata.decomposition(character).startswith("<") for character in text)
    base = " "
    for character in unicodedata.normalize("NFKD", text):
        if unicodedata.category(character).startswith("M"):
            found[_MARKS + _script(base)] += 1
        else:
            base = character
    return found


def _script(character: str) -> str:
    """The first word of a letter's name, which is its script."""
    return unicodedata.name(character, "other").split()[0].capitalize() if character.isalpha() else "other"


def describe_lost(counts: Mapping[str, int]) -> list[str]:
    """The counts of `count_lost`, added up over a corpus, in words; nothing where nothing was lost."""
    marks = {name.removeprefix(_MARKS): count for name, count in counts.items() if name.startswith(_MARKS) and count}
    lines = []
    if marks:
        scripts = ", ".join(f"{script} {count:,}" for script, count in sorted(marks.items(), key=lambda item: -item[1]))
        lines.append(f"{sum(marks.values()):,} combining marks removed by the tokenizer: {scripts}")
    if counts.get(_FORMS):
        lines.append(f"{counts[_FORMS]:,} compatibility forms rewritten by the tokenizer, as ﬁ to fi or ½ to 1⁄2")
    return lines
