"""Files of SQuAD, RACE and CoNLL: what is taken from them, moved, left out, counted or refused."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from electra_albert.contracts import DataError, UsageError
from electra_albert.finetuning_config import DataConfig
from electra_albert.tasks.reading import read_unlabelled
from electra_albert.tasks.registry import find_task
from electra_albert.tasks.squad_files import _nearest
from electra_albert.tasks.task import Answer, ChoiceExample, Report, SpanExample, TaskData, TokenExample
from tests.tasks.task_files import noticed, race_file, read, squad_file, write

NO_ANSWER: dict[str, Any] = {"answers": [], "is_impossible": True}
TAGGED = "EU NNP B-NP B-ORG\nrejects VBZ B-VP O\n\nPeter NNP B-NP B-PER\n"


def squad(folder: Path, name: str, train: list[dict[str, Any]], dev: list[dict[str, Any]] | None = None) -> TaskData:
    train_file = squad_file(folder / "t.json", *train)
    dev_file = squad_file(folder / "d.json", *([{}] if dev is None else dev))
    return read(name, train_file=train_file, validation_file=dev_file)


def answers(data: TaskData, where: str = "train") -> list[list[Answer]]:
    return [list(one.answers) for one in (data.train if where == "train" else data.evaluation["dev"])]


# SQuAD.


def test_questions_are_read_with_all_their_answers(tmp_path: Path) -> None:
    both = [{"text": "Rome", "answer_start": 15}, {"text": "in Rome", "answer_start": 12}]
    data = squad(tmp_path, "squad", [{"question": "Where?", "answers": both}])
    wanted = (Answer("Rome", 15), Answer("in Rome", 12))
    assert data.train == [SpanExample("Ada met Bob in Rome.", "Where?", wanted, "q0")]
    assert data.labels == ()


def test_each_squad_takes_the_file_of_its_version(tmp_path: Path) -> None:
    for stem in ("train", "dev"):
        squad_file(tmp_path / f"{stem}-v1.1.json", {})
        squad_file(tmp_path / f"{stem}-v2.0.json", {}, NO_ANSWER)
        squad_file(tmp_path / f"{stem}-v2.0.old.json", {})
    assert [len(read(name, data_dir=tmp_path).train) for name in ("squad", "squad_v2")] == [1, 2]


def test_a_question_without_an_answer_belongs_to_squad_v2_only(tmp_path: Path) -> None:
    second = squad(tmp_path, "squad_v2", [{}, NO_ANSWER], [{}, NO_ANSWER])
    assert [len(found) for found in answers(second)] == [len(found) for found in answers(second, "dev")] == [1, 0]
    assert noticed(second.report, "left out") == noticed(second.report, "NOT SCORED") == 0
    first = squad(tmp_path, "squad", [{}, NO_ANSWER], [{}, NO_ANSWER])
    assert (len(first.train), len(first.evaluation["dev"])) == (1, 1)
    assert noticed(first.report, "t.json left out of training: the question has no answer") == 1
    assert noticed(first.report, "d.json NOT SCORED: the question has no answer") == 1


def test_missing_answers_are_not_taken_for_no_answer(tmp_path: Path) -> None:
    forgotten = {"answers": [], "is_impossible": False}
    assert len(squad(tmp_path, "squad", [{}, {"answers": []}]).train) == 1
    assert len(squad(tmp_path, "squad_v2", [{}, forgotten]).train) == 1
    scored = squad(tmp_path, "squad_v2", [{}], [{}, forgotten])
    assert len(scored.evaluation["dev"]) == 2  # as the official script counts


def test_answers_of_an_impossible_question_are_ignored_and_counted(tmp_path: Path) -> None:
    data = squad(tmp_path, "squad_v2", [{}, {"is_impossible": True}])
    assert answers(data)[1] == []
    assert noticed(data.report, "marked as impossible") == 1


def test_an_answer_is_moved_to_where_its_text_stands(tmp_path: Path) -> None:
    data = squad(tmp_path, "squad", [{"answers": [{"text": "Bob", "answer_start": 6}]}])
    assert answers(data) == [[Answer("Bob", 8)]]
    assert noticed(data.report, "moved to where their text stands") == 1


def test_an_answer_that_stands_nowhere_is_left_out_of_training_and_still_scored(tmp_path: Path) -> None:
    lost = {"answers": [{"text": "Eve", "answer_start": 0}]}
    data = squad(tmp_path, "squad", [{}, lost], [lost])
    assert len(data.train) == 1
    assert noticed(data.report, "left out of training: the answer does not stand in the passage") == 1
    assert answers(data, "dev") == [[Answer("Eve", 0)]]
    assert noticed(data.report, "do not stand in the passage, and still count") == 1


@settings(deadline=None)
@given(st.text("ab ", max_size=30), st.text("ab", min_size=1, max_size=3), st.integers(-3, 40))
def test_the_nearest_place_is_that_of_a_search_over_all_places(context: str, text: str, start: int) -> None:
    places = [place for place in range(len(context)) if context.startswith(text, place)]
    found = _nearest(context, text, start)
    assert (found is None) == (not places)
    if found is not None:
        assert found in places
        aim = min(max(start, 0), len(context))
        assert abs(found - aim) == min(abs(place - aim) for place in places)


def test_questions_are_read_from_tables_in_the_form_of_datasets(tmp_path: Path) -> None:
    found = {"text": ["Rome"], "answer_start": [15]}
    row = {"id": "a", "title": "t", "context": "Ada met Bob in Rome.", "question": "Where?", "answers": found}
    none = {**row, "id": "b", "answers": {"text": [], "answer_start": []}}
    lines = write(tmp_path / "t.jsonl", json.dumps(row) + "\n" + json.dumps(none) + "\n")
    parquet.write_table(pyarrow.Table.from_pylist([row, none]), tmp_path / "d.parquet")
    data = read("squad_v2", train_file=lines, validation_file=tmp_path / "d.parquet")
    assert data.train == data.evaluation["dev"]
    assert answers(data) == [[Answer("Rome", 15)], []]


def test_new_questions_need_no_answers(tmp_path: Path) -> None:
    row = {"context": "Ada met Bob.", "question": "Who?"}
    lines = write(tmp_path / "new.jsonl", json.dumps(row))
    wanted = [SpanExample("Ada met Bob.", "Who?", None, "0")]
    assert read_unlabelled(find_task("squad"), lines, DataConfig(), Report()) == wanted
    whole = write(tmp_path / "new.json", json.dumps({"data": [{"paragraphs": [{**row, "qas": [{**row, "id": "0"}]}]}]}))
    assert read_unlabelled(find_task("squad"), whole, DataConfig(), Report()) == wanted


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        ("[]", "no 'data' as in a file of SQuAD"),
        ('{"data": [{"title": "x"}]}', "article 0: no 'paragraphs'"),
        ('{"data": [{"paragraphs": [{"context": 5}]}]}', "paragraph 0: no 'context'"),
        (
            '{"data": [{"paragraphs": [{"context": "c", "qas": [{"id": "a", "answers": [3]}]}]}]}',
            "question a: no 'text'",
        ),
        ("[" * 100_000, "too deep"),
        ('{"data": [{"paragraphs": [{"context": "\\ud800", "qas": [{"id": "a", "answers": []}]}]}]}', "surrogate"),
        ("", "not JSON"),
    ],
)
def test_what_is_no_file_of_squad_is_refused(tmp_path: Path, content: str, message: str) -> None:
    file = write(tmp_path / "bad.json", content)
    with pytest.raises(DataError, match=message) as refused:
        read("squad", train_file=file, validation_file=file)
    assert str(file) in str(refused.value)


# RACE.


def race_folder(folder: Path, **changes: Any) -> Path:
    for name in ("train/high/1.txt", "train/middle/2.txt", "dev/high/3.txt", "test/middle/4.txt"):
        (folder / "RACE" / name).parent.mkdir(parents=True)
        race_file(folder / "RACE" / name, **(changes if name.startswith("train/high") else {}))
    return folder


def test_articles_give_a_question_each_with_its_level(tmp_path: Path) -> None:
    data = read("race", data_dir=race_folder(tmp_path), needs_test=True)
    first = ChoiceExample("Tea is hot.", "Tea is _ .", ("hot", "cold", "old", "new"), 0, "middle2.txt-0", "middle")
    assert data.train[0] == first
    assert [(one.label, one.group) for one in data.train] == [(0, "middle"), (3, "middle"), (0, "high"), (3, "high")]
    assert [one.label for one in data.test["test"]] == [None, None]
    assert noticed(data.report, "level missing from dev: middle") == 1


def test_one_level_can_be_read_alone(tmp_path: Path) -> None:
    race_folder(tmp_path)
    assert {one.group for one in read("race", data_dir=tmp_path, race_level="high").train} == {"high"}
    with pytest.raises(UsageError, match="no folder middle/"):
        read("race", data_dir=tmp_path, race_level="middle")


def test_questions_without_an_answer_are_counted(tmp_path: Path) -> None:
    data = read("race", data_dir=race_folder(tmp_path, answers=["A", ""]))
    assert len(data.train) == 3
    assert noticed(data.report, "left out of training: no answer") == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"answers": ["A", "E"]}, "answer 'E' is none of A to D"),
        ({"answers": ["A"]}, "2 questions, 2 sets of options, 1 answers"),
        ({"questions": "Why?"}, "are not lists"),
        ({"options": [["a", "b"], ["a"]]}, "two options or more"),
        ({"options": None}, "no 'options' as in a file of RACE"),
    ],
)
def test_what_is_no_file_of_race_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message) as refused:
        read("race", data_dir=race_folder(tmp_path, **changes))
    assert str(Path("train/high/1.txt")) in str(refused.value)


def test_questions_are_read_from_tables(tmp_path: Path) -> None:
    row = {"example_id": "high7.txt", "article": "Tea.", "question": "Q", "options": ["x", "y"], "answer": "B"}
    whole = {"article": "Tea.", "questions": ["Q"], "options": [["x", "y"]], "answers": [1]}
    file = write(tmp_path / "t.jsonl", json.dumps(row))
    other = write(tmp_path / "d.jsonl", json.dumps(whole))
    data = read("race", train_file=file, validation_file=other)
    assert data.train == [ChoiceExample("Tea.", "Q", ("x", "y"), 1, "high7.txt", "high")]
    assert data.evaluation["dev"] == [ChoiceExample("Tea.", "Q", ("x", "y"), 1, "0-0", "")]
    with pytest.raises(DataError, match="its level is not told"):
        read("race", train_file=file, validation_file=other, race_level="high")


def test_one_right_option_for_all_questions_is_counted(tmp_path: Path) -> None:
    row = {"article": "Tea.", "question": "Q", "options": ["x", "y"], "answer": "B"}
    lines = "".join(json.dumps({**row, "question": question}) + "\n" for question in "QRS")
    file = write(tmp_path / "t.jsonl", lines.replace('"B"', '"A"', 1))
    data = read("race", train_file=file, validation_file=write(tmp_path / "d.jsonl", lines))
    assert noticed(data.report, "label only in d.jsonl: 'B'") == 1
    assert noticed(data.report, "label only in t.jsonl") == 0


# Options for columns where there are none.


@pytest.mark.parametrize("option", ["text_column", "text_pair_column", "label_column"])
def test_columns_cannot_be_chosen_in_the_forms_of_squad_and_race(tmp_path: Path, option: str) -> None:
    file = squad_file(tmp_path / "t.json", {})
    with pytest.raises(UsageError, match=rf"--{option} x: .*t\.json is in SQuAD's own form, which has no columns"):
        read("squad", train_file=file, validation_file=file, **{option: "x"})
    with pytest.raises(UsageError, match=rf"--{option} x: .*train is in RACE's own form, which has no columns"):
        read("race", data_dir=race_folder(tmp_path), **{option: "x"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text_column": "word"}, "--text_column word: .* has columns without names"),
        ({"label_column": "tag"}, "--label_column tag: .* has columns without names; give a number from 0"),
        ({"label_column": "4"}, r"--label_column 4: .*t\.conll has 4 columns, numbered from 0"),
        ({"label_column": "9" * 5000}, "has 4 columns, numbered from 0"),
    ],
)
def test_columns_that_conll_has_not_are_refused(tmp_path: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        conll(tmp_path, **options)
    file = write(tmp_path / "new.conll", "Ada\nran\n")  # to predict, a file may have another form
    config = DataConfig(**options)  # type: ignore[arg-type]
    assert len(read_unlabelled(find_task("ner"), file, config, Report())) == 1


def test_a_number_chooses_a_column_of_two_as_well_but_none_of_a_table(tmp_path: Path) -> None:
    assert conll(tmp_path, "a X\nb Y\n", "a X\nb Y\n", label_column="0").labels == ("a", "b")
    file = write(tmp_path / "t.jsonl", json.dumps({"tokens": ["a"], "ner_tags": ["O"]}))
    with pytest.raises(UsageError, match=r"--label_column 1: .* has columns with names; give one of them"):
        read("ner", train_file=file, validation_file=file, label_column="1")


# CoNLL.


def conll(folder: Path, train: str = TAGGED, dev: str = TAGGED, name: str = "ner", **options: Any) -> TaskData:
    files = {"train_file": write(folder / "t.conll", train), "validation_file": write(folder / "d.conll", dev)}
    return read(name, **files, **options)


def test_words_and_tags_are_read_from_their_columns(tmp_path: Path) -> None:
    data = conll(tmp_path)
    assert data.train == [
        TokenExample(("EU", "rejects"), ("B-ORG", "O"), "0"),
        TokenExample(("Peter",), ("B-PER",), "1"),
    ]
    assert data.labels == ("B-ORG", "B-PER", "O")
    assert conll(tmp_path, name="chunking").labels == ("B-NP", "B-VP")
    assert conll(tmp_path, "a B-NP\nb O\n", "b O\n", name="chunking").labels == ("B-NP", "O")
    assert conll(tmp_path, label_column="1").labels == ("NNP", "VBZ")


WORDS = st.lists(st.tuples(st.text("aé_-#", min_size=1), st.sampled_from(["O", "B-x"])), min_size=1)


@settings(deadline=None, max_examples=50)
@given(st.lists(WORDS, min_size=1, max_size=9))
def test_sentences_come_back_whatever_lies_between_columns_and_lines(sentences: list[list[tuple[str, str]]]) -> None:
    for column, line, gap in (("\t", "\n", "\t"), (" ", "\r\n", ""), ("  ", "\n", " \n")):
        text = (line + gap + line).join(line.join(word + column + tag for word, tag in one) for one in sentences)
        with TemporaryDirectory() as folder:
            found = conll(Path(folder), text, text).train
        assert [list(zip(one.words, one.tags, strict=True)) for one in found] == sentences


def test_beginnings_of_documents_are_no_words(tmp_path: Path) -> None:
    data = conll(tmp_path, "-DOCSTART- -X- -X- O\n\n" + TAGGED)
    assert len(data.train) == 2
    assert noticed(data.report, "lines of t.conll that begin a document") == 1


def test_a_sentence_with_an_untagged_word_is_counted(tmp_path: Path) -> None:
    data = conll(tmp_path, TAGGED + "\nx B-PER\ny\n", TAGGED + "\nx\n")
    assert (len(data.train), len(data.evaluation["dev"])) == (2, 2)
    what = "rows of t.conll left out of training: a word without a tag in the sentence"
    assert data.report.first_seen[what] == f"{tmp_path}/t.conll:7"
    assert noticed(data.report, "rows of d.conll NOT SCORED") == 1


def test_a_tag_that_is_not_trained_on_is_refused_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"d\.conll:6: label 'B-LOC' is not in the training data"):
        conll(tmp_path, dev=TAGGED + "\nRome B-LOC\n")


def test_files_are_found_by_what_their_names_hold(tmp_path: Path) -> None:
    for name in ("eng.train", "eng.testa", "eng.testb"):
        write(tmp_path / "conll2003" / name, TAGGED.replace("Peter", name))
    data = read("ner", data_dir=tmp_path, needs_test=True)
    found = [data.train, data.evaluation["dev"], data.test["test"]]
    assert [examples[1].words for examples in found] == [("eng.train",), ("eng.testa",), ("eng.testb",)]
    assert data.test["test"][0].tags is None


def test_words_and_tags_are_read_from_tables(tmp_path: Path) -> None:
    rows = [{"tokens": ["a", "b"], "ner_tags": ["O", "B-x"]}, {"tokens": ["a"], "ner_tags": []}]
    file = write(tmp_path / "t.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    data = read("ner", train_file=file, validation_file=file)
    assert data.train == [TokenExample(("a", "b"), ("O", "B-x"), "0")]
    assert noticed(data.report, "left out of training: not as many tags as words") == 1


@pytest.mark.parametrize(
    ("name", "content", "wanted"),
    [
        ("a.txt", "Ada met Bob .\nNew line here now\n", [("Ada", "met", "Bob", "."), ("New", "line", "here", "now")]),
        ("b.txt", "Ada met Bob .\n\nHi\n", [("Ada", "met", "Bob", "."), ("Hi",)]),
        ("c.conll", "Ada\nmet\n\nBob\n", [("Ada", "met"), ("Bob",)]),
        ("d.txt", "Ada NNP O\nmet VB O\n\nBob NNP O\n", [("Ada", "met"), ("Bob",)]),
        ("e.txt", "Ada\tO\nmet\tO\n", [("Ada", "met")]),
    ],
)
def test_new_text_is_columns_or_a_sentence_a_line(tmp_path: Path, name: str, content: str, wanted: object) -> None:
    found = read_unlabelled(find_task("ner"), write(tmp_path / name, content), DataConfig(), Report())
    assert [one.words for one in found] == wanted  # type: ignore[union-attr]


@pytest.mark.parametrize("none", [-100, "-100", "", None])
def test_a_word_whose_tag_stands_for_none_leaves_its_sentence_out(tmp_path: Path, none: Any) -> None:
    rows = [{"tokens": ["a", "b"], "ner_tags": [1, 0]}, {"tokens": ["c", "d"], "ner_tags": [none, 1]}]
    file = write(tmp_path / "t.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    data = read("ner", train_file=file, validation_file=file)
    assert ([one.words for one in data.train], data.labels) == ([("a", "b")], ("0", "1"))
    assert noticed(data.report, "left out of training: a word without a tag in the sentence") == 1
    assert noticed(data.report, "NOT SCORED: a word without a tag in the sentence") == 1


def test_tags_of_minus_100_in_columns_are_none_either(tmp_path: Path) -> None:
    data = conll(tmp_path, TAGGED + "\nx B-PER\ny -100\n")
    assert len(data.train) == 2
    assert noticed(data.report, "a word without a tag in the sentence") == 1


def test_too_many_tags_are_refused_with_a_hint(tmp_path: Path) -> None:
    tagged = "".join(f"word{i} tag{i}\n" for i in range(1001))
    with pytest.raises(DataError, match=r"t\.conll: 1,001 tags, more than 1,000; check that this is the right file"):
        conll(tmp_path, tagged, tagged)
    thousand = tagged.rpartition("word1000")[0]
    assert len(conll(tmp_path, thousand, thousand).labels) == 1000


@pytest.mark.parametrize("name", ["t.conll", "t.jsonl"])
def test_a_file_whose_sentences_are_single_words_is_refused_with_a_hint(tmp_path: Path, name: str) -> None:
    row = json.dumps({"tokens": ["a"], "ner_tags": ["O"]}) + "\n" if name == "t.jsonl" else "a O\n\n"
    for count in (9, 10):
        file = write(tmp_path / name, row * count)
        if count == 10:
            with pytest.raises(DataError, match="each of its 10 sentences is one word; put blank lines only between"):
                read("ner", train_file=file, validation_file=file)
        else:
            assert len(read("ner", train_file=file, validation_file=file).train) == 9


@pytest.mark.parametrize("name", ["t.csv", "t.JSON", "t.conll.gz"])
def test_endings_of_other_forms_are_refused_for_tags(tmp_path: Path, name: str) -> None:
    file = write(tmp_path / name, TAGGED)
    with pytest.raises(UsageError, match=r"give columns of CoNLL, \.jsonl or \.parquet, not"):
        read("ner", train_file=file, validation_file=file)


def test_forms_are_told_by_endings_in_any_case(tmp_path: Path) -> None:
    file = squad_file(tmp_path / "t.JSON", {})
    assert len(read("squad", train_file=file, validation_file=file).train) == 1
    article = race_file(tmp_path / "1.TXT")
    assert len(read("race", train_file=article, validation_file=article).train) == 2
    rows = write(tmp_path / "t.JSONL", json.dumps({"tokens": ["a"], "ner_tags": ["O"]}))
    assert len(read("ner", train_file=rows, validation_file=rows).train) == 1
