"""Files of SQuAD, RACE and CoNLL: parsed examples, corrections, counts and errors."""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from electra_albert.config.finetuning import DataConfig
from electra_albert.tasks.formats import nearest
from electra_albert.tasks.reading import read_unlabelled
from electra_albert.tasks.registry import find_task
from electra_albert.tasks.task import (
    Answer,
    ChoiceExample,
    Report,
    SpanExample,
    TaskData,
    TokenExample,
)
from tests.refusals import assert_refused, rows
from tests.tasks.task_files import as_lines, noticed, race_file, read, squad_file, write

NO_ANSWER: dict[str, Any] = {"answers": [], "is_impossible": True}
TAGGED = "EU NNP B-NP B-ORG\nrejects VBZ B-VP O\n\nPeter NNP B-NP B-PER\n"


def json_lines(path: Path, *records: dict[str, Any]) -> Path:
    return write(path, "".join(json.dumps(record) + "\n" for record in records))


def read_both(name: str, file: Path, **options: Any) -> TaskData:
    return read(name, train_file=file, validation_file=file, **options)


def new(name: str, file: Path, **options: Any) -> list[Any]:
    report = Report()
    examples = read_unlabelled(find_task(name), file, DataConfig(**options), report)
    assert not noticed(report, "comments")
    return examples


# SQuAD.


def test_questions_are_read_from_the_file_of_their_version(tmp_path: Path) -> None:
    both = [{"text": "Rome", "answer_start": 15}, {"text": "in Rome", "answer_start": 12}]
    for stem in ("train", "dev"):
        squad_file(tmp_path / f"{stem}-v1.1.json", {"question": "Where?", "answers": both})
        squad_file(tmp_path / f"{stem}-v2.0.json", {}, NO_ANSWER)
        squad_file(tmp_path / f"{stem}-v2.0.old.json", {})
    expected = (Answer("Rome", 15), Answer("in Rome", 12))
    (example,) = read("squad", data_dir=tmp_path).train
    assert example == SpanExample("Ada met Bob in Rome.", "Where?", expected, "q0")
    assert len(read("squad_v2", data_dir=tmp_path).train) == 2


# Task, its answer and mark, the answers read in training and in evaluation (- if the question is
# left out), and what is counted.
UNUSUAL = """
squad_v2 |       | true  |       |       |
squad    |       | true  | -     | -     | unanswerable question
squad    |       | null  | -     | -     | no answers
squad_v2 |       | false | -     |       | left out of training
squad_v2 | Ada 0 | true  |       |       | t.json marked as impossible
squad    | Bob 6 | null  | Bob 8 | Bob 8 | t.json moved to the nearest position
squad    | Eve 0 | null  | -     | Eve 0 | d.json kept although not in
"""


@pytest.mark.parametrize(("name", "answer", "mark", "train", "dev", "notice"), rows(UNUSUAL))
def test_an_unusual_question_is_used_or_left_out_and_counted(
    tmp_path: Path, name: str, answer: str, mark: str, train: str, dev: str, notice: str
) -> None:
    answers = [{"text": answer[:3], "answer_start": int(answer[4:])}] if answer else []
    question = {"answers": answers, "is_impossible": json.loads(mark)}
    files = [squad_file(tmp_path / file, {}, question) for file in ("t.json", "d.json")]
    data = read(name, train_file=files[0], validation_file=files[1])
    for expected, examples in ((train, data.train), (dev, data.evaluation["dev"])):
        actual = [" ".join(map(str, sum(example.answers, ()))) for example in examples[1:]]
        assert actual == ([] if expected == "-" else [expected])
    assert noticed(data.report, "left out of training") == (train == "-")
    assert noticed(data.report, "NOT SCORED") == (dev == "-")
    assert noticed(data.report, notice) >= bool(notice)


@settings(deadline=None)
@given(st.text("ab ", max_size=30), st.text("ab", min_size=1, max_size=3), st.integers(-3, 40))
def test_the_nearest_position_is_that_of_a_search_over_all(
    context: str, text: str, start: int
) -> None:
    def distance(place: int) -> int:
        return abs(place - min(max(start, 0), len(context)))

    positions = [place for place in range(len(context)) if context.startswith(text, place)]
    position = nearest(context, text, start)
    assert position in (positions or [None])
    assert position is None or distance(position) == min(map(distance, positions))


def test_questions_are_read_from_tables_and_new_ones_need_no_answers(tmp_path: Path) -> None:
    bare = {"context": "Ada met Bob in Rome.", "question": "Where?"}
    row = {**bare, "id": "a", "answers": {"text": ["Rome"], "answer_start": [15]}}
    none = {**row, "id": "b", "answers": {"text": [], "answer_start": []}}
    parquet.write_table(pyarrow.Table.from_pylist([row, none]), tmp_path / "d.parquet")
    lines = json_lines(tmp_path / "t.jsonl", row, none)
    data = read("squad_v2", train_file=lines, validation_file=tmp_path / "d.parquet")
    assert data.train == data.evaluation["dev"]
    assert [example.answers for example in data.train] == [(Answer("Rome", 15),), ()]
    whole = {"data": [{"paragraphs": [{**bare, "qas": [{**bare, "id": "0"}]}]}]}
    expected = [SpanExample(*bare.values(), None, "0")]
    assert new("squad", json_lines(tmp_path / "new.jsonl", bare)) == expected
    assert new("squad", json_lines(tmp_path / "new.JSON", whole)) == expected


# RACE.


def test_articles_give_questions_with_levels(tmp_path: Path) -> None:
    folder = tmp_path / "RACE"
    for name in ("train/high/1.txt", "train/middle/2.txt", "dev/high/3.txt", "test/middle/4.txt"):
        race_file(folder / name)
    data = read("race", data_dir=tmp_path, needs_test=True)
    options = ("hot", "cold", "old", "new")
    first = ChoiceExample("Tea is hot.", "Tea is _ .", options, 0, "middle2.txt-0", "middle")
    assert data.train[0] == first
    answers = [(example.label, example.group) for example in data.train]
    assert answers == [(0, "middle"), (3, "middle"), (0, "high"), (3, "high")]
    assert [example.label for example in data.test["test"]] == [None, None]
    assert noticed(data.report, "missing level of dev: middle") == 1
    high = read("race", data_dir=tmp_path, race_level="high").train
    assert {example.group for example in high} == {"high"}
    middle = {"data_dir": tmp_path, "race_level": "middle"}  # of which there is no dev set
    assert_refused("UsageError", "no folder middle/", read, "race", **middle)
    race_file(folder / "train/high/1.txt", answers=["A", ""], id="1.txt")
    data = read("race", data_dir=tmp_path)
    assert noticed(data.report, "left out of training: no answer") == 1
    # The level is that of the folder: the id names none.
    assert [example.group for example in data.train] == ["middle", "middle", "high"]


def test_questions_of_race_are_read_from_tables(tmp_path: Path) -> None:
    row = {"article": "Tea.", "question": "Q", "options": ["x", "y"], "answer": "B"}
    train = json_lines(tmp_path / "t.jsonl", {**row, "example_id": "high7.txt"})
    whole = {"article": "Tea.", "questions": ["Q", "R"], "answers": [1, "B"]}
    dev = json_lines(tmp_path / "d.jsonl", {**whole, "options": [["x", "y"]] * 2})
    files = {"train_file": train, "validation_file": dev}
    data = read("race", **files)
    first = ChoiceExample("Tea.", "Q", ("x", "y"), 1, "0-0", "")
    assert data.train == [first._replace(identity="high7.txt", group="high")]
    assert data.evaluation["dev"] == [first, first._replace(question="R", identity="0-1")]
    assert noticed(data.report, "label for all examples of d.jsonl: 'B'") == 1
    assert_refused("DataError", "d.jsonl", read, "race", **files, race_level="high")


# CoNLL.


def conll(folder: Path, train: str = TAGGED, dev: str = "", **options: Any) -> TaskData:
    """The data of two files of tagging, by default with the same text."""
    name = options.pop("name", "ner")
    files = {"train_file": write(folder / "t.conll", train)}
    files["validation_file"] = write(folder / "d.conll", dev or train)
    return read(name, **files, **options)


def test_words_and_tags_are_read_from_their_columns(tmp_path: Path) -> None:
    data = conll(tmp_path)
    first = TokenExample(("EU", "rejects"), ("B-ORG", "O"), "0")
    assert data.train == [first, TokenExample(("Peter",), ("B-PER",), "1")]
    assert data.labels == ("B-ORG", "B-PER", "O")
    two = "a B-NP\nb O\n"
    assert conll(tmp_path, name="chunking").labels == ("B-NP", "B-VP")
    assert conll(tmp_path, two, name="chunking").labels == ("B-NP", "O")
    assert conll(tmp_path, label_column="1").labels == ("NNP", "VBZ")
    assert conll(tmp_path, two, label_column="0", text_column="1").labels == ("a", "b")
    packed = write(tmp_path / "t.conll.gz", gzip.compress(TAGGED.encode()))
    assert read_both("ner", packed).train == data.train


WORDS = st.tuples(st.text("aé_-#", min_size=1), st.sampled_from(["O", "B-x"]))


@settings(deadline=None, max_examples=50)
@given(st.lists(st.lists(WORDS, min_size=1), min_size=1, max_size=9))
def test_sentences_are_read_with_any_separators(sentences: list[list[tuple[str, str]]]) -> None:
    for column, line, gap in (("\t", "\n", "\t"), (" ", "\r\n", ""), ("  ", "\n", " \n")):
        texts = [line.join(map(column.join, sentence)) for sentence in sentences]
        with TemporaryDirectory() as folder:
            examples = conll(Path(folder), (line + gap + line).join(texts)).train
        assert [[*zip(*example[:2], strict=True)] for example in examples] == sentences


def test_sentences_with_missing_tags_and_document_starts_are_counted(tmp_path: Path) -> None:
    train = f"-DOCSTART- -X- -X- O\n\n{TAGGED}\nx B-PER\ny\n\nx B-PER\ny -100\n"
    data = conll(tmp_path, train, TAGGED + "\nx\n")
    assert (len(data.train), len(data.evaluation["dev"])) == (2, 2)
    what = "examples of t.conll left out of training: a word without a tag in the sentence"
    assert (data.report.counts[what], data.report.first_seen[what]) == (2, f"{tmp_path}/t.conll:8")
    assert noticed(data.report, "examples of d.conll NOT SCORED") == 1
    assert noticed(data.report, "lines of t.conll skipped: document starts") == 1


# Comments of Universal Dependencies, MultiCoNER, GermEval and others, and what separates columns.
COMMENTS = """
# text = Ann ran .      | ~
# id 7~domain=en        | =_=_=
#~http://x.org [2009]   | ~_~
# newdoc                | =
"""


@pytest.mark.parametrize(("comment", "gap"), rows(COMMENTS))
def test_comments_are_no_words_but_a_word_may_be_their_sign(
    tmp_path: Path, comment: str, gap: str
) -> None:
    gap = gap.replace("=", " ")
    text = f"{comment};{comment};Ann|B-x;#|O;;{comment};#|O;ran|O".replace("|", gap)
    data = conll(tmp_path, as_lines(text))
    assert [example.words for example in data.train] == [("Ann", "#"), ("#", "ran")]
    assert [example.tags for example in data.train] == [("B-x", "O"), ("O", "O")]
    assert data.report.counts["lines of t.conll skipped: comments"] == 3


NUMBERED = "1-2\tdel\t_\n1\tde\tADP\n2\tel\tDET\n2.1\tera\tAUX\n\n1\tAda\tPROPN\n"


def test_numbers_of_words_are_not_taken_for_words(tmp_path: Path) -> None:
    for text in (NUMBERED, NUMBERED.replace("1-2\t", "0\t"), "1.\tde\n2.\tel\n"):
        file = write(tmp_path / "new.conll", text)
        assert_refused("UsageError", "--text_column", new, "ner", file)
    data = conll(tmp_path, NUMBERED, text_column="1", label_column="2")
    assert data.train[0] == TokenExample(("de", "el"), ("ADP", "DET"), "0")
    what = "sentences of t.conll read without their rows such as 1-2 and 1.1"
    assert noticed(data.report, what) == 1
    assert new("ner", tmp_path / "t.conll", text_column="1")[1].words == ("Ada",)
    data = conll(tmp_path, "1.\tde\tADP\n2.\tel\tDET\n", text_column="1")
    assert data.train[0].words == ("de", "el")
    assert conll(tmp_path, "1 O\n1 B-x\n").train[0].words == ("1", "1")


def test_an_empty_first_column_is_left_out(tmp_path: Path) -> None:
    text = "# id 1\n\tEU NNP B-NP B-ORG\n\trejects VBZ B-VP O\n\n\tPeter NNP B-NP B-PER\n"
    data = conll(tmp_path, text)
    assert data.train == conll(tmp_path).train
    assert noticed(data.report, "lines of t.conll read without an empty first column") == 3
    for same in ("\tNew York\tB-LOC\n\tran\tO\n", "New York\tB-LOC\nran\tO\n"):
        assert conll(tmp_path, same).train[0].words == ("New York", "ran")
    # Columns that are named are counted with an empty first one.
    named = conll(tmp_path, "\tAnn\tNNP\tB-PER\n", text_column="1", label_column="2")
    assert named.labels == ("NNP",)


def test_a_small_o_next_to_entities_is_their_capital(tmp_path: Path) -> None:
    small = "a B-\u00e9\nb o\n\nc o\n"
    for train in (small, small.replace(" o", " O").replace("\u00e9", "e\u0301")):
        data = conll(tmp_path, train, small)
        assert [example.tags for example in data.evaluation["dev"]] == [("B-\u00e9", "O"), ("O",)]
        assert data.labels == ("B-\u00e9", "O")
        assert noticed(data.report, "tags o of d.conll taken as O") == 2
    assert conll(tmp_path, "a o\nb NN\n").labels == ("NN", "o")
    task = replace(find_task("ner"), labels=("B-\u00e9", "o"))  # of a fine-tuned model
    data = read(task, is_trained=False, validation_file=write(tmp_path / "d.conll", small))
    assert data.evaluation["dev"][0].tags[1] == "o"


def test_files_are_found_by_parts_of_their_names(tmp_path: Path) -> None:
    names = ("eng.train", "eng.testa", "eng.testb")
    for name in names:
        write(tmp_path / "conll2003" / name, f"{name} B-x\n")
    data = read("ner", data_dir=tmp_path, needs_test=True)
    sets = (data.train, data.evaluation["dev"], data.test["test"])
    assert tuple(examples[0].words[0] for examples in sets) == names
    assert data.test["test"][0].tags is None


def test_words_and_tags_are_read_from_tables(tmp_path: Path) -> None:
    tags = [[0, 1], [], [0, -100], [0, ""], [0, None]]
    records = [{"tokens": ["a", "b"], "ner_tags": numbers} for numbers in tags]
    data = read_both("ner", json_lines(tmp_path / "t.JSONL", *records))
    assert data.train == [TokenExample(("a", "b"), ("0", "1"), "0")]
    assert noticed(data.report, "left out of training: not as many tags as words") == 1
    assert noticed(data.report, "left out of training: a word without a tag") == 3


# A file of new text, its lines, and the sentences that are read.
NEW = """
a.txt   | Ada met Bob .;New line here now      | Ada met Bob .;New line here now
b.txt   | # met Bob .;;Hi                      | # met Bob .;Hi
c.conll | Ada;met;;Bob                         | Ada met;Bob
d.txt   | Ada NNP O;met VB O;;Bob NNP O        | Ada met;Bob
e.txt   | Ada~O;met~O                          | Ada met
f.txt   | Ada loves Rome;;Bob left Paris       | Ada loves Rome;Bob left Paris
g.txt   | Ada loves Rome;Bob left Paris;;      | Ada loves Rome;Bob left Paris
h.txt   | Ada met~Bob;New line here            | Ada met Bob;New line here
"""


@pytest.mark.parametrize(("name", "lines", "sentences"), rows(NEW))
def test_new_text_is_columns_or_one_sentence_per_line(
    tmp_path: Path, name: str, lines: str, sentences: str
) -> None:
    file = write(tmp_path / name, as_lines(lines))
    examples = new("ner", file, label_column="tag")  # of no effect
    assert ";".join(" ".join(example.words) for example in examples) == sentences


# Refused: a task, a file and its content, as text (with ~ for a tab) or as JSON, and options.

REFUSED = r"""
squad | t.json  | t.json       | {
squad | t.json  | 'data'       | []
squad | t.json  | 'paragraphs' | {"data": [{"title": "x"}]}
squad | t.json  | 'context'    | {"data": [{"paragraphs": [{"context": 5}]}]}
squad | t.jsonl | 'text'       | {"context": "c", "question": "q", "answers": [3]}
squad | t.jsonl | surrogate    | {"context": "\ud800", "question": "q", "answers": []}
race  | t.jsonl | answer 'E'   | {"article": "", "question": "", "options": ["", ""], "answer": "E"}
race  | t.jsonl | 2 to 26      | {"article": "", "question": "", "options": [""], "answer": "A"}
race  | t.txt   | 'questions'  | {"article": "", "questions": "q", "options": [], "answers": []}
race  | t.txt   | 1 questions  | {"article": "", "questions": [""], "options": [[]], "answers": []}
ner   | t.csv   | .csv         | a O
ner   | t.JSON  | .JSON        | a O
ner   | t.zip   | .zip         | a O
"""
# Options, the class of error, what it names, and a line of words and tags.
REFUSED_COLUMNS = """
text_column=word         | UsageError | --text_column    | EU~NNP~B-NP~B-ORG
label_column=tag         | UsageError | --label_column   | EU~NNP~B-NP~B-ORG
label_column=4           | UsageError | --label_column 4 | EU~NNP~B-NP~B-ORG
column_names=a,b         | UsageError | --column_names   | EU~NNP~B-NP~B-ORG
text_column=3            | UsageError | column 3         | EU~NNP~B-NP~B-ORG
label_column=0           | UsageError | column 0         | EU~NNP~B-NP~B-ORG
text_column=1            | UsageError | column 1         | O~Ann
text_column=0            | UsageError | --text_column    | 1~Ann~O;2~ran~O
text_column=1            | DataError  | t.conll:1        | 7~Ann~O;8
label_column=2           | DataError  | t.conll:1        | ~Ann~NNP~B-PER
text_column=0            | DataError  | t.conll:1        | ~Ann~NNP~B-PER
label_column=2           | DataError  | t.conll:1        | Ann~NN~B-PER;~ran~VB~O
"""


@pytest.mark.parametrize(("name", "file", "word", "content"), rows(REFUSED))
def test_a_file_of_another_format_is_refused(
    tmp_path: Path, name: str, file: str, word: str, content: str
) -> None:
    path = write(tmp_path / file, content)
    error = "UsageError" if name == "ner" else "DataError"
    assert file in assert_refused(error, word, read_both, name, path)
    if path.suffix in (".json", ".txt"):
        for option in ("text_column", "text_pair_column", "label_column"):
            assert_refused("UsageError", file, read_both, name, path, **{option: "x"})


@pytest.mark.parametrize(("option", "error", "word", "lines"), rows(REFUSED_COLUMNS))
def test_options_that_name_no_column_of_words_or_tags_are_refused(
    tmp_path: Path, option: str, error: str, word: str, lines: str
) -> None:
    name, _, value = option.partition("=")
    assert_refused(error, word, conll, tmp_path, as_lines(lines), **{name: value})


def test_too_many_tags_and_sentences_of_single_words_are_refused(tmp_path: Path) -> None:
    thousand = "".join(f"word{i} tag{i}\n" for i in range(1000))
    assert len(conll(tmp_path, thousand).labels) == 1000
    assert len(conll(tmp_path, "a O\n\n" * 9).train) == 9
    for text, word in ((thousand + "word tag\n", "1,001 tags"), ("a O\n\n" * 10, "10 sentences")):
        assert_refused("DataError", word, conll, tmp_path, text)
