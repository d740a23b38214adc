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

from electra_albert.contracts import DataError, UsageError
from electra_albert.finetuning_config import DataConfig
from electra_albert.tasks.formats import nearest
from electra_albert.tasks.reading import read_unlabelled
from electra_albert.tasks.registry import find_task
from electra_albert.tasks.task import Answer, ChoiceExample, Report, SpanExample, TaskData, TokenExample
from tests.tasks.task_files import noticed, race_file, read, squad_file, write

NO_ANSWER: dict[str, Any] = {"answers": [], "is_impossible": True}
TAGGED = "EU NNP B-NP B-ORG\nrejects VBZ B-VP O\n\nPeter NNP B-NP B-PER\n"


def json_lines(path: Path, *rows: dict[str, Any]) -> Path:
    return write(path, "".join(json.dumps(row) + "\n" for row in rows))


def new(name: str, file: Path, **options: Any) -> list[Any]:
    return read_unlabelled(find_task(name), file, DataConfig(**options), Report())


# SQuAD.


def test_questions_are_read_with_all_their_answers_from_the_file_of_their_version(tmp_path: Path) -> None:
    both = [{"text": "Rome", "answer_start": 15}, {"text": "in Rome", "answer_start": 12}]
    for stem in ("train", "dev"):
        squad_file(tmp_path / f"{stem}-v1.1.json", {"question": "Where?", "answers": both})
        squad_file(tmp_path / f"{stem}-v2.0.json", {}, NO_ANSWER)
        squad_file(tmp_path / f"{stem}-v2.0.old.json", {})
    wanted = (Answer("Rome", 15), Answer("in Rome", 12))
    assert read("squad", data_dir=tmp_path).train == [SpanExample("Ada met Bob in Rome.", "Where?", wanted, "q0")]
    assert len(read("squad_v2", data_dir=tmp_path).train) == 2


def at(text: str, start: int) -> dict[str, Any]:
    return {"answers": [{"text": text, "answer_start": start}]}


NONE, NO_SPAN = "unanswerable question", "examples of d.json NOT SCORED"
LOST = "examples of t.json left out of training"


@pytest.mark.parametrize(
    ("name", "question", "train", "dev", "notices"),
    [
        ("squad_v2", NO_ANSWER, [], [], []),
        ("squad", NO_ANSWER, None, None, [f"{LOST}: {NONE}", f"{NO_SPAN}: {NONE}"]),
        ("squad", {"answers": []}, None, None, [f"{LOST}: no answers", f"{NO_SPAN}: no answers"]),
        ("squad_v2", {"answers": [], "is_impossible": False}, None, [], [LOST]),  # scored as by the official script
        ("squad_v2", {"is_impossible": True}, [], [], ["t.json marked as impossible", "d.json marked as impossible"]),
        ("squad", at("Bob", 6), [("Bob", 8)], [("Bob", 8)], ["t.json moved to the nearest position of their text"]),
        ("squad", at("Eve", 0), None, [("Eve", 0)], [f"{LOST}: the answer is not", "d.json kept although not in"]),
    ],
)
def test_an_unusual_question_is_used_or_left_out_and_counted(
    tmp_path: Path, name: str, question: Any, train: list[Any] | None, dev: list[Any] | None, notices: list[str]
) -> None:
    train_file, dev_file = (squad_file(tmp_path / f"{stem}.json", {}, question) for stem in "td")
    data = read(name, train_file=train_file, validation_file=dev_file)
    for wanted, found, what in ((train, data.train, LOST), (dev, data.evaluation["dev"], NO_SPAN)):
        assert [list(one.answers) for one in found[1:]] == ([] if wanted is None else [wanted])
        assert noticed(data.report, what) == (wanted is None)
    assert [noticed(data.report, notice) for notice in notices] == [1] * len(notices)


@settings(deadline=None)
@given(st.text("ab ", max_size=30), st.text("ab", min_size=1, max_size=3), st.integers(-3, 40))
def test_the_nearest_position_is_that_of_a_search_over_all(context: str, text: str, start: int) -> None:
    positions = [position for position in range(len(context)) if context.startswith(text, position)]
    found = nearest(context, text, start)
    assert (found is None) == (not positions)
    if found is not None:
        aim = min(max(start, 0), len(context))
        assert found in positions
        assert abs(found - aim) == min(abs(position - aim) for position in positions)


def test_questions_are_read_from_tables_and_new_ones_need_no_answers(tmp_path: Path) -> None:
    found = {"text": ["Rome"], "answer_start": [15]}
    row = {"id": "a", "title": "t", "context": "Ada met Bob in Rome.", "question": "Where?", "answers": found}
    none = {**row, "id": "b", "answers": {"text": [], "answer_start": []}}
    parquet.write_table(pyarrow.Table.from_pylist([row, none]), tmp_path / "d.parquet")
    files = {"train_file": json_lines(tmp_path / "t.jsonl", row, none), "validation_file": tmp_path / "d.parquet"}
    data = read("squad_v2", **files)
    assert data.train == data.evaluation["dev"]
    assert [one.answers for one in data.train] == [(Answer("Rome", 15),), ()]
    bare = {"context": "Ada met Bob.", "question": "Who?"}
    whole = {"data": [{"paragraphs": [{**bare, "qas": [{**bare, "id": "0"}]}]}]}
    wanted = [SpanExample("Ada met Bob.", "Who?", None, "0")]
    assert new("squad", json_lines(tmp_path / "new.jsonl", bare)) == wanted
    assert new("squad", write(tmp_path / "new.JSON", json.dumps(whole))) == wanted


QA = '{"data": [{"paragraphs": [{"context": %s, "qas": [{"id": "a", "question": "q", "answers": %s}]}]}]}'


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ("{", "not JSON"),
        ("[]", "no valid 'data'"),
        ('{"data": [{"title": "x"}]}', "article 0: no valid 'paragraphs'"),
        ('{"data": [{"paragraphs": [{"context": 5}]}]}', "paragraph 0: no valid 'context'"),
        (QA % ('"c"', "[3]"), "question a: no valid 'text'"),
        (QA % ('"\\ud800"', "[]"), "surrogate"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_files_that_are_not_squad_are_refused(tmp_path: Path, content: str, word: str) -> None:
    file = write(tmp_path / "bad.json", content)
    with pytest.raises(DataError, match=rf"bad\.json.*{word}"):
        read("squad", train_file=file, validation_file=file)


# RACE.


def race_folder(folder: Path, **changes: Any) -> Path:
    for name in ("train/high/1.txt", "train/middle/2.txt", "dev/high/3.txt", "test/middle/4.txt"):
        (folder / "RACE" / name).parent.mkdir(parents=True)
        race_file(folder / "RACE" / name, **(changes if name.startswith("train/high") else {}))
    return folder


def test_articles_give_questions_with_levels_and_those_without_an_answer_are_counted(tmp_path: Path) -> None:
    data = read("race", data_dir=race_folder(tmp_path), needs_test=True)
    first = ChoiceExample("Tea is hot.", "Tea is _ .", ("hot", "cold", "old", "new"), 0, "middle2.txt-0", "middle")
    assert data.train[0] == first
    assert [(one.label, one.group) for one in data.train] == [(0, "middle"), (3, "middle"), (0, "high"), (3, "high")]
    assert [one.label for one in data.test["test"]] == [None, None]
    assert noticed(data.report, "missing level of dev: middle") == 1
    assert {one.group for one in read("race", data_dir=tmp_path, race_level="high").train} == {"high"}
    with pytest.raises(UsageError, match="no folder middle/"):
        read("race", data_dir=tmp_path, race_level="middle")
    race_file(tmp_path / "RACE" / "train" / "high" / "1.txt", answers=["A", ""], id="1.txt")
    data = read("race", data_dir=tmp_path)
    assert (len(data.train), noticed(data.report, "left out of training: no answer")) == (3, 1)
    assert [one.group for one in data.train] == ["middle", "middle", "high"]  # from its folder: its id names no level


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"answers": ["A", "E"]}, "answer 'E' is not one of A to D or 0 to 3"),
        ({"answers": ["A"]}, "2 questions"),
        ({"questions": "Why?"}, "no valid 'questions'"),
        ({"options": [["a", "b"], ["a"]]}, "2 to 26 options"),
        ({"options": [[*map(str, range(27))], ["a", "b"]]}, "2 to 26 options"),
        ({"options": None}, "no valid 'options'"),
    ],
)
def test_files_that_are_not_race_are_refused(tmp_path: Path, changes: dict[str, Any], word: str) -> None:
    with pytest.raises(DataError, match=rf"train/high/1\.txt.*{word}"):
        read("race", data_dir=race_folder(tmp_path, **changes))


def test_questions_of_race_are_read_from_tables_and_a_constant_answer_is_counted(tmp_path: Path) -> None:
    row = {"example_id": "high7.txt", "article": "Tea.", "question": "Q", "options": ["x", "y"], "answer": "B"}
    whole = {"article": "Tea.", "questions": ["Q", "R"], "options": [["x", "y"]] * 2, "answers": [1, "B"]}
    files = {"train_file": json_lines(tmp_path / "t.jsonl", row)}
    files["validation_file"] = json_lines(tmp_path / "d.jsonl", whole)
    data = read("race", **files)
    assert data.train == [ChoiceExample("Tea.", "Q", ("x", "y"), 1, "high7.txt", "high")]
    assert data.evaluation["dev"] == [ChoiceExample("Tea.", q, ("x", "y"), 1, f"0-{n}", "") for n, q in enumerate("QR")]
    assert noticed(data.report, "label for all examples of d.jsonl: 'B'") == 1
    with pytest.raises(DataError, match="no level"):
        read("race", **files, race_level="high")


# CoNLL.


def conll(folder: Path, train: str = TAGGED, dev: str = TAGGED, name: str = "ner", **options: Any) -> TaskData:
    files = {"train_file": write(folder / "t.conll", train), "validation_file": write(folder / "d.conll", dev)}
    return read(name, **files, **options)


def test_words_and_tags_are_read_from_their_columns(tmp_path: Path) -> None:
    data = conll(tmp_path)
    first = TokenExample(("EU", "rejects"), ("B-ORG", "O"), "0")
    assert data.train == [first, TokenExample(("Peter",), ("B-PER",), "1")]
    assert data.labels == ("B-ORG", "B-PER", "O")
    assert conll(tmp_path, name="chunking").labels == ("B-NP", "B-VP")
    assert conll(tmp_path, "a B-NP\nb O\n", "b O\n", name="chunking").labels == ("B-NP", "O")
    assert conll(tmp_path, label_column="1").labels == ("NNP", "VBZ")
    assert conll(tmp_path, "a X\nb Y\n", "a X\nb Y\n", label_column="0", text_column="1").labels == ("a", "b")
    packed = write(tmp_path / "t.conll.gz", gzip.compress(TAGGED.encode()))
    assert read("ner", train_file=packed, validation_file=packed).train == data.train


WORDS = st.lists(st.tuples(st.text("aé_-#", min_size=1), st.sampled_from(["O", "B-x"])), min_size=1)


@settings(deadline=None, max_examples=50)
@given(st.lists(WORDS, min_size=1, max_size=9))
def test_sentences_are_read_with_any_separators(sentences: list[list[tuple[str, str]]]) -> None:
    for column, line, gap in (("\t", "\n", "\t"), (" ", "\r\n", ""), ("  ", "\n", " \n")):
        text = (line + gap + line).join(line.join(word + column + tag for word, tag in one) for one in sentences)
        with TemporaryDirectory() as folder:
            found = conll(Path(folder), text, text).train
        assert [list(zip(one.words, one.tags, strict=True)) for one in found] == sentences


def test_sentences_with_missing_tags_and_document_starts_are_counted(tmp_path: Path) -> None:
    data = conll(tmp_path, f"-DOCSTART- -X- -X- O\n\n{TAGGED}\nx B-PER\ny\n\nx B-PER\ny -100\n", TAGGED + "\nx\n")
    assert (len(data.train), len(data.evaluation["dev"])) == (2, 2)
    what = "examples of t.conll left out of training: a word without a tag in the sentence"
    assert (data.report.counts[what], data.report.first_seen[what]) == (2, f"{tmp_path}/t.conll:8")
    assert noticed(data.report, "examples of d.conll NOT SCORED") == 1
    assert noticed(data.report, "lines of t.conll skipped: document starts") == 1
    with pytest.raises(DataError, match=r"d\.conll:6: label 'B-LOC' "):
        conll(tmp_path, dev=TAGGED + "\nRome B-LOC\n")


@pytest.mark.parametrize(
    ("comment", "gap"),
    [
        ("# text = Ann ran .", "\t"),  # Universal Dependencies
        ("# id 7\tdomain=en", "\t"),
        ("# id 7\tdomain=en", " _ _ "),  # MultiCoNER
        ("#\thttp://x.org [2009]", "\t_\t"),  # GermEval
        ("# newdoc", " "),
    ],
)
def test_comments_are_no_words_but_a_word_may_be_their_sign(tmp_path: Path, comment: str, gap: str) -> None:
    text = f"{comment}\n{comment}\nAnn|B-x\n#|O\n\n{comment}\n#|O\nran|O\n".replace("|", gap)
    data = conll(tmp_path, text, text)
    assert [(one.words, one.tags) for one in data.train] == [(("Ann", "#"), ("B-x", "O")), (("#", "ran"), ("O", "O"))]
    assert data.report.counts["lines of t.conll skipped: comments"] == 3


NUMBERED = "1-2\tdel\t_\n1\tde\tADP\n2\tel\tDET\n2.1\tera\tAUX\n\n1\tAda\tPROPN\n"


def test_numbers_of_words_are_not_taken_for_words(tmp_path: Path) -> None:
    for text in (NUMBERED, NUMBERED.replace("1-2\t", "0\t"), "1\tde\n2\tel\n", "1.\tde\n2.\tel\n"):
        with pytest.raises(UsageError, match=r"counts the words .* --text_column 1, .* --label_column"):
            new("ner", write(tmp_path / "new.conll", text))
    data = conll(tmp_path, NUMBERED, NUMBERED, text_column="1", label_column="2")
    assert data.train[0] == TokenExample(("de", "el"), ("ADP", "DET"), "0")
    assert noticed(data.report, "sentences of t.conll read without their rows such as 1-2 and 1.1") == 1
    with pytest.raises(UsageError, match="counts the words"):
        conll(tmp_path, NUMBERED, NUMBERED, text_column="0", label_column="2")
    assert new("ner", tmp_path / "t.conll", text_column="1")[1].words == ("Ada",)
    assert conll(tmp_path, "1 O\n1 B-x\n", "1 O\n").train[0].words == ("1", "1")


def test_an_empty_first_column_is_left_out_and_an_empty_word_refused(tmp_path: Path) -> None:
    text = "# id 1\n\tEU NNP B-NP B-ORG\n\trejects VBZ B-VP O\n\n\tPeter NNP B-NP B-PER\n"
    data = conll(tmp_path, text, text)
    assert data.train == conll(tmp_path).train
    assert noticed(data.report, "lines of t.conll read without an empty first column") == 3
    for same in ("\tNew York\tB-LOC\n\tran\tO\n", "New York\tB-LOC\nran\tO\n"):
        assert conll(tmp_path, same, same).train[0].words == ("New York", "ran")
    with pytest.raises(DataError, match=r"t\.conll:1: .* empty word"):
        conll(tmp_path, "Ann NN B-PER\n\tran VB O\n")
    with pytest.raises(DataError, match=r"t\.conll:1: .* empty word"):
        conll(tmp_path, "\tAnn\tB-PER\n\t\tO\n")


def test_columns_that_are_named_are_counted_with_an_empty_first_one(tmp_path: Path) -> None:
    text = "\tAnn\tNNP\tB-PER\n"
    assert conll(tmp_path, text, text, text_column="1", label_column="2").labels == ("NNP",)
    for options in ({"label_column": "2"}, {"text_column": "0"}):
        with pytest.raises(DataError, match=r"empty word.* --text_column"):
            conll(tmp_path, text, text, **options)


@pytest.mark.parametrize(
    "options", [{"text_column": "3"}, {"label_column": "0"}, {"name": "chunking", "text_column": "2"}]
)
def test_words_are_not_their_own_tags(tmp_path: Path, options: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=r"t\.conll:1: column \d holds both .* --label_column"):
        conll(tmp_path, **options)
    two = "O Ann\nB-x Bob\n"
    with pytest.raises(UsageError, match="column 1 holds both"):
        conll(tmp_path, two, two, text_column="1")
    assert new("ner", tmp_path / "t.conll", text_column="1")[0].words == ("Ann", "Bob")


def test_a_line_without_the_column_of_words_is_refused(tmp_path: Path) -> None:
    # Regression: its first cell was read as the word.
    with pytest.raises(DataError, match=r"t\.conll:1: a line without column 1"):
        conll(tmp_path, "7 Ann B-x\n8\n", text_column="1")
    with pytest.raises(DataError, match="a line without column 2"):
        new("ner", write(tmp_path / "new.conll", "7 Ann\n"), text_column="2")


def test_a_small_o_next_to_entities_is_their_capital_and_composed_tags_are_equal(tmp_path: Path) -> None:
    small = "a B-\u00e9\nb o\n\nc o\n"
    for train in (small, small.replace(" o", " O").replace("\u00e9", "e\u0301")):
        data = conll(tmp_path, train, small)
        assert [example.tags for example in data.evaluation["dev"]] == [("B-\u00e9", "O"), ("O",)]
        assert data.labels == ("B-\u00e9", "O")
        assert noticed(data.report, "tags o of d.conll taken as O") == 2
    assert conll(tmp_path, "a o\nb NN\n", "b o\n").labels == ("NN", "o")
    task = replace(find_task("ner"), labels=("B-\u00e9", "o"))  # of a fine-tuned model
    of_model = read(task, is_trained=False, validation_file=tmp_path / "d.conll")
    assert of_model.evaluation["dev"][0].tags == ("o",)
    assert noticed(of_model.report, "tags o") == 0


def test_files_are_found_by_parts_of_their_names(tmp_path: Path) -> None:
    for name in ("eng.train", "eng.testa", "eng.testb"):
        write(tmp_path / "conll2003" / name, TAGGED.replace("Peter", name))
    data = read("ner", data_dir=tmp_path, needs_test=True)
    found = [data.train, data.evaluation["dev"], data.test["test"]]
    assert [examples[1].words for examples in found] == [("eng.train",), ("eng.testa",), ("eng.testb",)]
    assert data.test["test"][0].tags is None


def test_words_and_tags_are_read_from_tables(tmp_path: Path) -> None:
    rows = [[0, 1], [], *([0, none] for none in (-100, "", None))]
    file = json_lines(tmp_path / "t.JSONL", *({"tokens": ["a", "b"], "ner_tags": tags} for tags in rows))
    data = read("ner", train_file=file, validation_file=file)
    assert (data.train, data.labels) == ([TokenExample(("a", "b"), ("0", "1"), "0")], ("0", "1"))
    assert noticed(data.report, "left out of training: not as many tags as words") == 1
    assert noticed(data.report, "left out of training: a word without a tag") == 3
    with pytest.raises(UsageError, match=r"--label_column 1: .* has named columns"):
        read("ner", train_file=file, validation_file=file, label_column="1")


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
def test_new_text_is_columns_or_one_sentence_per_line(tmp_path: Path, name: str, content: str, wanted: object) -> None:
    assert [one.words for one in new("ner", write(tmp_path / name, content))] == wanted


def test_tags_that_are_too_many_and_sentences_of_single_words_are_refused(tmp_path: Path) -> None:
    thousand = "".join(f"word{i} tag{i}\n" for i in range(1000))
    assert len(conll(tmp_path, thousand, thousand).labels) == 1000
    for text, word in ((thousand + "word tag\n", "1,001 tags"), ("a O\n\n" * 10, "10 sentences have one word")):
        with pytest.raises(DataError, match=rf"t\.conll: .*{word}"):
            conll(tmp_path, text, text)
    assert len(conll(tmp_path, "a O\n\n" * 9, "a O\n\n" * 9).train) == 9


def test_each_format_is_evaluated_without_reading_training_data(tmp_path: Path) -> None:
    race_file(tmp_path / "dev" / "high" / "1.txt")
    files = {
        "cola": (write(tmp_path / "dev.tsv", "gj04\t1\t\tIt is.\ngj04\t0\t*\tIs it is.\n"), 2),
        "squad": (squad_file(tmp_path / "d.json", {}), 1),
        "race": (tmp_path / "dev", 2),
        "ner": (write(tmp_path / "d.conll", "Ada B-x\nran O\n"), 1),
    }
    for name, (file, size) in files.items():
        task = replace(find_task(name), labels=("B-x", "O")) if name == "ner" else find_task(name)
        data = read(task, is_trained=False, validation_file=file, train_file=tmp_path / "none.tsv")
        assert (len(data.train), len(data.evaluation["dev"])) == (0, size), name


# Options and names that do not fit the format.


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"text_column": "word"}, "--text_column word: .* unnamed columns"),
        ({"label_column": "tag"}, "--label_column tag: .* a number from 0"),
        ({"label_column": "4"}, r"--label_column 4: .*t\.conll has 4 columns"),
        ({"label_column": "9" * 5000}, "has 4 columns"),
    ],
)
def test_options_for_columns_missing_in_conll_are_refused(tmp_path: Path, options: dict[str, str], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        conll(tmp_path, **options)
    assert len(new("ner", write(tmp_path / "new.conll", "Ada\nran\n"), **options)) == 1  # in any format


def test_columns_and_endings_that_fit_no_format_are_refused(tmp_path: Path) -> None:
    for option in ("text_column", "text_pair_column", "label_column"):
        for name, file in (("squad", squad_file(tmp_path / "t.json", {})), ("race", race_file(tmp_path / "t.txt"))):
            with pytest.raises(UsageError, match=rf"--{option} x: .*{file.name} has the task's own format"):
                read(name, train_file=file, validation_file=file, **{option: "x"})
    for name in ("t.csv", "t.JSON", "t.zip"):
        with pytest.raises(UsageError, match="CoNLL columns"):
            read("ner", train_file=write(tmp_path / name, TAGGED), validation_file=tmp_path / name)
