"""The built-in corpus: what is read, what is kept of it, and that it is made once."""

import json
from collections import Counter
from inspect import cleandoc
from pathlib import Path

import pytest

from electra_albert.contracts import UsageError
from electra_albert.corpus import installed_docs
from electra_albert.corpus.installed_docs import (
    CORPUS_NAME,
    RECEIPT_NAME,
    Source,
    installed_fingerprint,
    installed_sources,
    write_documents,
)
from electra_albert.corpus.near_duplicates import NearDuplicates
from electra_albert.corpus.prose import plain_sentences

NUMPYDOC = """
Return the mean of the values along an axis.

The mean is the sum divided by ``count``, see :func:`~numpy.sum` and `the guide <https://example.org/guide>`_.

Parameters
----------
values : array_like, shape (n,)
    The values whose mean is wanted. They are
    not changed.
axis : int, optional
    axis

Returns
-------
mean : float
    The mean of the values.

See Also
--------
median : The middle value of the sorted values.

Notes
-----
Nothing is rounded before the end, as in::

    total = the(sum) of all and the rest

>>> mean([1, 2, 3])
The output of this is left out too.

=====  ==========
Name   What it is
=====  ==========
one    the first of the two
=====  ==========

.. versionadded:: 1.2
.. code-block:: python

    for the_value in the_values: it is in the code

.. note:: It is slower than a sum.
"""

GOOGLE = """Load the model from a folder.

Args:
    folder (`str` or `Path`, *optional*, defaults to `None`): Where the model is. If it is missing, the newest
        one is taken.
    strict (bool): strict
Returns:
    Model: The model that was found in the folder.

Example:

```python
>>> load("this is the code of an example")
```

- **first** -- The first of the points to be made.
- The second of them, with a [link](https://example.org).
"""


def prose(text: str) -> list[str]:
    return plain_sentences(cleandoc(text), Counter())


def test_numpydoc_gives_its_prose_only() -> None:
    # Catches code, doctests, tables, headings and signatures that slip through, and descriptions that are lost.
    assert prose(NUMPYDOC) == [
        "Return the mean of the values along an axis.",
        "The mean is the sum divided by count, see numpy.sum and the guide.",
        "The values whose mean is wanted.",
        "They are not changed.",
        "The mean of the values.",
        "Nothing is rounded before the end, as in:",
        "It is slower than a sum.",
    ]


def test_google_style_and_markdown_give_their_prose_only() -> None:
    assert prose(GOOGLE) == [
        "Load the model from a folder.",
        "Where the model is.",
        "If it is missing, the newest one is taken.",
        "The model that was found in the folder.",
        "The first of the points to be made.",
        "The second of them, with a link.",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "foo(bar, baz=None) -> the_result of it[0]",
        "See the page at https://example.org/the/page for this.",
        "x y z w v u t s r q",
        "Copyright holders.",
        "THIS IS THE TEXT OF A WARRANTY THAT IS NOT GIVEN.",
        "where it is used and by which of the",
    ],
)
def test_what_does_not_read_like_prose_is_left_out(text: str) -> None:
    assert prose(text) == []


def test_every_sentence_left_out_has_a_reason_that_is_counted() -> None:
    dropped: Counter[str] = Counter()
    plain_sentences("Too short. This sentence is kept as it is. See www.example.org for the rest of it.", dropped)
    assert dropped == {"sentences_too_short": 1, "sentences_with_a_link": 1}


# Near-duplicates.


def numbered_words(first: int, count: int) -> list[str]:
    return [f"w{i}" for i in range(first, first + count)]


@pytest.mark.parametrize(("changed", "is_repeat"), [(0, True), (3, True), (40, False), (100, False)])
def test_a_near_duplicate_is_told_by_the_share_of_its_word_runs(changed: int, is_repeat: bool) -> None:
    seen = NearDuplicates()
    for other in range(50):
        assert not seen.add(numbered_words(1000 * other, 100))
    words = numbered_words(7000, 100)
    assert seen.add(["new"] * changed + words[changed:]) is is_repeat


# The whole way, on a few files.

FIRST = '''"""Tools for reading the files of the user. Small."""
raise SystemExit("this module must never be run")


class Reader:
    """Reads the lines of a file in the order in which they were written."""

    def close(self):
        """Close the file, after which it must not be read again by anyone."""
        text = "A string that is in the code and is not documentation."


add_newdoc("package", "name", ("attribute", """The attribute that is described from the outside is found as well."""))
'''
SECOND = FIRST.replace("the user", "a user").replace("add_newdoc", "something_else")
README = "Reader\n======\n\nThe reader is a package by which the lines of a file are read.\n"


def make_sources(folder: Path) -> list[Source]:
    contents = {
        "a/first.py": FIRST.encode(),
        "a/second.py": SECOND.encode(),
        "b/README.md": README.encode(),
        "b/broken.py": b'"""Not Python."""\ndef (',
        "b/encoded.py": b'"""The caf\xe9 is not in the encoding that it should be in."""',
        "b/repeats.py": "".join(
            f'def f{i}():\n    """The sentence that is repeated for ever. Number {i} of the {i * i} is its own."""\n'
            for i in range(9)
        ).encode(),
        "python/pydoc_data/topics.py": b"topics = {'a': '''The topic of the words that are in the language.'''}\n",
    }
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return [Source(str(folder / name), name) for name in [*contents, "b/missing.py"]]


def write(folder: Path, sources: list[Source], workers: int = 1) -> tuple[list[dict], Counter[str]]:
    write_documents(folder, sources, "fingerprint", workers)
    lines = (folder / CORPUS_NAME).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines], Counter(json.loads((folder / RECEIPT_NAME).read_text())["counts"])


def test_documentation_is_found_without_running_anything(tmp_path: Path) -> None:
    documents, _ = write(tmp_path / "out", make_sources(tmp_path))
    assert [d["sentences"] for d in documents if d["source"] == "a/first.py"] == [
        ["Tools for reading the files of the user."],
        ["Reads the lines of a file in the order in which they were written."],
        ["Close the file, after which it must not be read again by anyone."],
        ["The attribute that is described from the outside is found as well."],
    ]
    assert [d["sentences"] for d in documents if d["source"].endswith(("README.md", "topics.py"))] == [
        ["The reader is a package by which the lines of a file are read."],
        ["The topic of the words that are in the language."],
    ]


def test_repeated_documents_and_sentences_are_left_out(tmp_path: Path) -> None:
    # Catches a corpus in which the copies of a docstring fall on both sides of the held-out split.
    documents, counts = write(tmp_path / "out", make_sources(tmp_path))
    repeats = [d for d in documents if "The sentence that is repeated for ever." in d["sentences"]]
    assert len(repeats) == 5
    assert sum("order in which they were written" in " ".join(d["sentences"]) for d in documents) == 1
    assert counts["texts_repeated_exactly"] == 2


def test_the_receipt_accounts_for_every_file_and_text(tmp_path: Path) -> None:
    documents, counts = write(tmp_path / "out", make_sources(tmp_path))
    assert counts["files_unreadable"] == 1
    assert counts["files_not_parsed"] == 2
    left_out = ("texts_repeated_exactly", "texts_without_prose", "documents_too_short", "documents_near_duplicate")
    assert counts["texts_found"] == counts["documents"] + sum(counts[name] for name in left_out)
    assert counts["documents"] == len(documents)
    assert counts["sentences"] == sum(len(d["sentences"]) for d in documents)
    assert counts["bytes_written"] == (tmp_path / "out" / CORPUS_NAME).stat().st_size


def test_the_number_of_workers_changes_no_byte(tmp_path: Path) -> None:
    sources = make_sources(tmp_path) * 20
    write(tmp_path / "one", sources, workers=1)
    write(tmp_path / "two", sources, workers=2)
    assert (tmp_path / "one" / CORPUS_NAME).read_bytes() == (tmp_path / "two" / CORPUS_NAME).read_bytes()
    assert sorted(path.name for path in (tmp_path / "two").iterdir()) == sorted([CORPUS_NAME, RECEIPT_NAME])


def test_the_corpus_is_made_once_and_again_when_it_is_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Catches a corpus of other packages, or one cut short, that is taken for the right one.
    monkeypatch.setattr(installed_docs, "installed_sources", lambda: make_sources(tmp_path))
    corpus = installed_docs.write_installed_docs(tmp_path / "out", workers=1)
    first = (corpus.stat().st_mtime_ns, corpus.read_bytes())
    installed_docs.write_installed_docs(tmp_path / "out", workers=1)
    assert corpus.stat().st_mtime_ns == first[0]
    corpus.write_bytes(first[1][:-9])
    installed_docs.write_installed_docs(tmp_path / "out", workers=1)
    assert corpus.read_bytes() == first[1]
    write_documents(tmp_path / "out", make_sources(tmp_path)[:1], "other packages", 1)
    installed_docs.write_installed_docs(tmp_path / "out", workers=1)
    assert corpus.read_bytes() == first[1]


def test_a_folder_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UsageError, match="cannot write") as refusal:
        write_documents(tmp_path / "file", [], "fingerprint", 1)
    assert "\n" not in str(refusal.value)


# What is installed.


def test_the_library_and_the_requirements_are_read_and_nothing_else() -> None:
    names = [source.name for source in installed_sources()]
    assert names == sorted(set(names))
    tops = {name.split("/")[0] for name in names}
    assert {"python", "torch", "numpy", "transformers"} <= tops
    assert tops.isdisjoint({"_pytest", "pytest", "hypothesis", "ruff", "mypy", "sentencepiece", "electra_albert"})
    assert "python/argparse.py" in names
    assert not [name for name in names if {"test", "tests", "site-packages"} & set(name.split("/"))]


def test_the_fingerprint_is_the_same_twice() -> None:
    assert installed_fingerprint() == installed_fingerprint()
