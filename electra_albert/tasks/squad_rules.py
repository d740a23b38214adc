"""The rules by which SQuAD's scripts compare an answer with the right ones.

Those of the script of version 2.0, for both versions. The script of 1.1 differs where nothing is left of an answer once
it is normalised: there two such answers have F1 0 though they match, and a right one of which nothing is left counts
beside others. Of the answers of version 1.1 this concerns those that are an article or punctuation alone.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")


def normalize_answer(text: str) -> str:
    """Lower case without ASCII punctuation and articles, words parted by one space."""
    # Punctuation goes before articles do, as in the official script: "a-n" becomes an article.
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def _right_answers(golds: Sequence[str]) -> list[str]:
    """The normalised right answers; the empty one where nothing is left of them or there are none."""
    return [gold for gold in map(normalize_answer, golds) if gold] or [""]


def exact_match(prediction: str, golds: Sequence[str]) -> float:
    """1.0 where the answer equals a right one up to normalisation; no golds: where it is empty."""
    return float(normalize_answer(prediction) in _right_answers(golds))


def f1(prediction: str, golds: Sequence[str]) -> float:
    """Best F1 of the answer's words, as a bag, against a right answer's; an empty one agrees only with an empty one."""
    words = normalize_answer(prediction).split()
    return max(_word_f1(words, gold.split()) for gold in _right_answers(golds))


def _word_f1(predicted: list[str], gold: list[str]) -> float:
    if not predicted or not gold:
        return float(predicted == gold)
    shared = sum((Counter(predicted) & Counter(gold)).values())
    return 2 * shared / (len(predicted) + len(gold))
