"""The default task: where its texts come from, what they may not give away, and that it is made once."""

import json
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest

from electra_albert.apps.finetune import docs_task
from electra_albert.apps.finetune.docs_task import make_texts, write_docs_task
from electra_albert.contracts import DataError, UsageError
from electra_albert.corpus import installed_docs
from electra_albert.corpus.installed_docs import Source

PACKAGES = ("alpha", "beta", "gamma")
FILES = 60
WORDS = ("value", "array", "index", "shape", "graph", "edge", "tensor", "frame", "column", "symbol", "module", "thread")

Documents = list[tuple[str, list[str]]]


def make_documents(files: int = FILES) -> Documents:
    """Two documents a file; every sentence stands once and has ten words."""
    documents: Documents = []
    for package in PACKAGES:
        for file in range(files):
            for part in range(2):
                number = f"{package[0]}{file} {'first' if part else 'last'}"
                sentences = [f"The {WORDS[(file + i) % 12]} of number {number} {i} is seen here." for i in range(5)]
                documents.append((f"{package}/module{file}.py", sentences))
    return documents


def test_a_text_is_neighbouring_sentences_of_one_document_labelled_by_its_package() -> None:
    documents = make_documents()
    joined = {(source.split("/")[0], " ".join(sentences)) for source, sentences in documents}
    for text in chain(*make_texts(documents)):
        assert any(label == text.label and " ".join(text.sentences) in document for label, document in joined)
        assert 20 <= sum(len(sentence.split()) for sentence in text.sentences) <= 60
        assert len(text.sentences) <= 3


def test_every_label_is_as_frequent_and_no_more_so_than_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docs_task, "TRAIN_TEXTS", 7)
    train, dev = make_texts(make_documents()[: -2 * FILES + 40])  # fewer files of the last package
    assert Counter(text.label for text in train) == dict.fromkeys(PACKAGES, 7)
    counts = Counter(text.label for text in dev)
    assert set(counts) == set(PACKAGES)
    assert len(set(counts.values())) == 1


def test_what_is_too_long_or_too_short_is_passed_over_and_costs_no_neighbour() -> None:
    short, long = "It is so short.", " ".join(["A sentence of"] + ["many words"] * 40)
    documents = [
        (source, [short] * 3 + sentences[:2] + [long] + sentences[2:4]) for source, sentences in make_documents()
    ]
    halves = {tuple(sentences[i : i + 2]) for _, sentences in make_documents() for i in (0, 2)}
    texts = list(chain(*make_texts(documents)))
    assert {text.sentences for text in texts} <= halves
    assert len(texts) > len(halves) / 2


def test_held_out_texts_come_from_other_files_and_share_no_sentence_with_training() -> None:
    documents = make_documents()
    common = [f"This sentence, number {i}, is found everywhere." for i in range(20)]
    shared = [(common[i % 20], common[i % 20].upper())[i % 3 == 0] for i in range(len(documents))]
    train, dev = make_texts([(source, [more, *told]) for (source, told), more in zip(documents, shared, strict=True)])
    files = {sentence: source for source, sentences in documents for sentence in sentences}
    files_of = [{files[text.sentences[-1]] for text in texts} for texts in (train, dev)]
    assert files_of[0].isdisjoint(files_of[1])
    folded = [[sentence.casefold() for text in texts for sentence in text.sentences] for texts in (train, dev)]
    assert set(folded[0]).isdisjoint(folded[1])
    assert not set(map(str.casefold, common)).isdisjoint(folded[0])
    for sentences in folded:
        assert len(sentences) == len(set(sentences))


def test_about_a_tenth_of_the_files_is_held_out() -> None:
    documents = make_documents(200)
    _, dev = make_texts(documents)
    files = {sentence: source for source, sentences in documents for sentence in sentences}
    held_out = {files[text.sentences[0]] for text in dev}
    # Balanced to the rarest label, so at most the drawn share: 20 files of 200, standard deviation 4.2.
    assert 3 * (20 - 4 * 4.3) < len(held_out) < 3 * (20 + 4 * 4.3)


@pytest.mark.parametrize("name", ["alpha", "Beta", "PyGamma", "gammavision", "`alpha.sum`", "BETA's"])
def test_a_text_that_names_a_package_to_choose_from_is_left_out(name: str) -> None:
    named = [f"In the file of {name} nothing is told about the answer to this question at all, number {i}, as all know."
             for i in range(400)]  # fmt: skip
    documents = make_documents()
    for i, sentence in enumerate(named):
        documents.append((f"{PACKAGES[i % 3]}/named{i}.py", [sentence]))
    for texts in make_texts(documents):
        assert not any(name in sentence for text in texts for sentence in text.sentences)


def test_a_name_inside_another_word_gives_nothing_away() -> None:
    documents = make_documents()
    inside = (
        "The word overalphabetic holds a name, as do some others of the same length, yet that tells nothing at all."
    )
    documents += [
        (f"{package}/inside{i}.py", [f"{inside} {package[0]}{i}"]) for package in PACKAGES for i in range(300)
    ]
    assert any("overalphabetic" in text.sentences[0] for text in make_texts(documents)[0])


def test_packages_with_the_most_sentences_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docs_task, "LABELS", 2)
    documents = make_documents()
    more = [(source, [f"{sentence} Again." for sentence in sentences]) for source, sentences in documents]
    train, _ = make_texts(documents + [document for document in more if document[0].startswith("gamma")])
    assert {text.label for text in train} == {"alpha", "gamma"}


def test_a_package_with_hardly_a_text_is_no_choice() -> None:
    few = [(f"delta/module{i}.py", sentences) for i, (_, sentences) in enumerate(make_documents()[:4])]
    long = [("delta/long.py", ["Not one text is cut of it."] * 5000)]  # so that it is among the largest
    for texts in make_texts(make_documents() + few + long):
        assert {text.label for text in texts} == set(PACKAGES)


def test_descriptions_in_folders_called_by_a_version_are_no_package() -> None:
    many = [(f"alpha-{version}.dist-info/METADATA", make_documents()[0][1] * 500) for version in range(9)]
    train, _ = make_texts(make_documents() + many)
    assert {text.label for text in train} == set(PACKAGES)


@pytest.mark.parametrize("documents", [[], make_documents()[:FILES], make_documents()[: 2 * FILES + 1]])
def test_too_little_documentation_is_refused(documents: Documents) -> None:
    with pytest.raises(DataError, match="installed") as refusal:
        make_texts(documents)
    assert "\n" not in str(refusal.value)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The sources of three packages, as if nothing else were installed."""
    sources = []
    for name, sentences in make_documents(40):
        path = tmp_path / "installed" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(f'def f():\n    """{sentences[0]}\n\n    {" ".join(sentences[1:])}\n    """\n\n\n')
        sources.append(Source(str(path), name))
    unique = sorted(set(sources), key=lambda source: source.name)
    monkeypatch.setattr(installed_docs, "installed_sources", lambda: unique)
    return tmp_path / "prepared"


def read(file: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def test_the_task_is_made_once_and_again_when_it_is_stale(installed: Path) -> None:
    files = write_docs_task(installed)
    first = [(file.stat().st_mtime_ns, file.read_bytes()) for file in files]
    assert [sorted(row) for row in read(files[0])[:1]] == [["label", "text"]]
    assert [file.name for file in files] == ["train.jsonl", "dev.jsonl"]
    assert write_docs_task(installed) == files
    assert [file.stat().st_mtime_ns for file in files] == [time for time, _ in first]
    for damage in (files[0].unlink, lambda: files[1].write_bytes(b""), (files[0].parent / "receipt.json").unlink):
        damage()
        write_docs_task(installed)
        assert [file.read_bytes() for file in files] == [content for _, content in first]
    receipt = json.loads((files[0].parent / "receipt.json").read_text())
    (files[0].parent / "receipt.json").write_text(json.dumps(receipt | {"fingerprint": "another corpus"}))
    write_docs_task(installed)
    assert json.loads((files[0].parent / "receipt.json").read_text()) == receipt
    assert sorted(path.name for path in files[0].parent.iterdir()) == ["dev.jsonl", "receipt.json", "train.jsonl"]


def test_what_is_being_made_is_said(installed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    write_docs_task(installed)
    assert any("default task" in line for line in said)
    assert all("\n" not in line for line in said)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("place", ["prepared", "prepared/docs-task", "prepared/docs"])
def test_a_folder_that_cannot_be_made_is_one_clear_line(installed: Path, place: str) -> None:
    in_the_way = installed.parent / place
    in_the_way.parent.mkdir(exist_ok=True)
    in_the_way.write_text("in the way")
    with pytest.raises(UsageError, match="cannot write") as refusal:
        write_docs_task(installed)
    assert "\n" not in str(refusal.value)
