"""Class names are unique, and code and docs avoid the words of DESIGN section 7: `python -m
tests.test_vocabulary`.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.budgets import PACKAGE, ROOT, sources

CODE = (PACKAGE, "benchmarks", "experiments")
# Regular expression, where a blank matches an underscore or a line break too: better word.
WORDS = {
    r"say|says|said|told|tells?|telling": "log, report, print, know",
    r"pieces?": "token, subword",
    "receipts?": "corpus statistics",
    r"rows? of (the |a |one |each )?(text|tokens?|batch|corpus|split)|rows? of \d[\d,]* "
    r"tokens": "sequence",
    r"(cut|few|fewer|filled|held "
    r"out|held-out|long|longest|masked|packed|short|shortest|training) rows?": "example",
    r"(masks|positions|predictions|segments|slots|targets|tokens|words) (a|per|of a|in a) row": (
        "per sequence"
    ),
    r"(a|an|each|every|first|last|many|more|one|per|second|shared|two) pass|passes": (
        "layer, epoch, forward"
    ),
    r"(take|takes|taken|taking|took) up|(go|goes|going|gone|went) on": "resume, continue",
    r"(a|at|higher|its|lower|of|own|peak|published|same|the|whole) rates?|rate \d\w*|rate "
    r"scales?": "learning rate",
    r"shown (to the generator )?as": "replaced by",
    r"verdicts?|judg\w+": "score, logit, prediction",
    r"guess\w*": "prediction, chance level",
    r"places?": "position, path, device",
    r"without (any )?learning": "baseline",
    r"stands?|stood|standing|lies|lie|lay|lying": "is",
    r"anew|behind|beside": "again, after, next to",
    r"contenders?|contests?|arms?": "implementation, comparison, variant",
    r"nats a (count|sentence|step|token|word)": "nats per",
    r'"""what|^#+ what': "(name the thing)",
}
ALLOWED = (
    *(
        "(discriminator|dropout|generator|learning|mask(ing)?|muon|sampling) rates?",
        "decimal places?",
        "(in|takes?) place",
    ),
    *(
        "(forward|backward|training) pass(es)?",
        "passes (it|them|the|to)",
        r"ir\.passes",
        "takes? up to",
        "lay out",
    ),
    *(
        "rows of the token( embedding)? table",
        r"piece(\.\w+| in)",
        r"proto\.pieces",
        "max piece length",
    ),
    *(
        "(cannot|can|one can) (say|tell)",
        "say (little|otherwise)",
        "points behind",
        "behind the table",
    ),
    # Examples in English.
    *("told (the|that) children", r"(\d|%|music,) place", "['▁]places?", "a place, politics"),
    *("(it|village) lies on", r"said\|says"),
)
PATTERNS = [
    f"(?<![a-z])({words})(?![a-z])".replace(" ", r"[\s_]+") for words in (*WORDS, "|".join(ALLOWED))
]
UNWANTED = re.compile(
    "|".join(f"(?P<w{number}>{words})" for number, words in enumerate(PATTERNS[:-1])), re.I | re.M
)
KEPT = re.compile(PATTERNS[-1], re.I)


def hits(files: dict[str, str]) -> Iterator[str]:
    """A line `file:line: word -> better word` for each unwanted word."""
    for path, text in files.items():
        for match in UNWANTED.finditer(KEPT.sub(lambda kept: re.sub(r"\S", " ", kept[0]), text)):
            line, better = (
                text.count("\n", 0, match.start()) + 1,
                [*WORDS.values()][int(str(match.lastgroup)[1:])],
            )
            yield f"{path}:{line}: {' '.join(match[0].split())} -> {better}"


def searched() -> dict[str, str]:
    globs = [
        "*.py",
        "*.md",
        "data/**/*.md",
        "docs/*.py",
        "docs/*.md",
        "dev/log/*.md",
        "benchmarks/*.md",
    ]
    globs.append("experiments/*.yaml")
    paths = [
        path.relative_to(ROOT).as_posix() for glob in globs for path in sorted(ROOT.glob(glob))
    ]
    # Which names what was renamed.
    return sources(*CODE, *(path for path in paths if path != "CHANGELOG.md"))


def repeated_classes(files: dict[str, str]) -> list[str]:
    nodes = [node for source in files.values() for node in ast.walk(ast.parse(source))]
    return [
        name
        for name, n in Counter(
            node.name for node in nodes if isinstance(node, ast.ClassDef)
        ).items()
        if n > 1
    ]


def test_no_two_classes_share_a_name() -> None:
    assert repeated_classes(sources(*CODE)) == []
    assert repeated_classes(
        {"a": "class A:\n    class _B: ...", "b": "def f():\n    class _B: ..."}
    ) == ["_B"]


def test_code_and_docs_use_the_words_of_the_field() -> None:
    assert list(hits(searched())) == []


PLANTED = """it tells,TOLD_ONCE,pieces,a receipt,rows of 128 tokens,tokens a row,each pass,
rate_scales,rate 5e-4,it goes
on,shown as [MASK],a verdict,guessing,at this place,without learning,it stands,anew,contenders,
## What it costs"""


@pytest.mark.parametrize("planted", PLANTED.split(","))
def test_the_search_finds_a_planted_word(planted: str) -> None:
    allowed = (
        "The learning rate and mask_rate in place; rows of the token\ntable, a row of a table.\n"
    )
    assert [len(list(hits({"a.md": text}))) for text in (allowed, allowed + planted)] == [0, 1]


if __name__ == "__main__":
    found = list(hits(searched()))
    print(*found, f"{len(found)} words to replace", sep="\n")
    sys.exit(bool(found))
