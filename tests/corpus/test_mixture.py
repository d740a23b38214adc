"""Several sources: what the file that lists them may say, and how often the rows of each are drawn."""

from __future__ import annotations

import glob
import os
from collections import Counter
from pathlib import Path

import pytest
import torch

from electra_albert.contracts import DataError, UsageError
from electra_albert.corpus.mixture import Source, order_rows, read_sources, source_names

SEED = 5


def write(folder: Path, text: str) -> str:
    (folder / "sources.yaml").write_text(text, encoding="utf-8")
    return str(folder / "sources.yaml")


def test_anything_but_a_yaml_file_is_one_source_itself() -> None:
    assert read_sources("my.txt", "body") == [Source("my.txt", "body", None)]


def test_sources_are_read_with_paths_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "wiki.txt").write_text("Text.\n")
    listed = write(tmp_path, "- {corpus: wiki.txt, weight: 3}\n- {corpus: sample, weight: 1, text_column: body}\n")
    assert read_sources(listed, "text") == [
        Source(str(tmp_path / "wiki.txt"), "text", 3),
        Source("sample", "body", 1),
    ]


def test_names_of_sources_are_short_and_never_repeat() -> None:
    listed = (
        "/x/wiki/*.txt.xz",
        "a b.txt",
        "owner/name:train",
        "*",
        "/y/wiki/",
        "docs",
        "/z/docs",
        "docs-9",
        "/a/docs",
    )
    names = ["wiki", "a-b.txt", "name-train", "source", "wiki-5", "docs", "docs-7", "docs-9", "docs-9-9"]
    assert source_names([Source(corpus, "text") for corpus in listed]) == names


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("just words", "lists no sources"),
        ("- {weight: 1}", "entry 1 names no corpus"),
        ("- {corpus: a.txt, wieght: 2}", "'wieght'"),
        ("- {corpus: a.txt, weight: 0}", "weight 0"),
        ("- {corpus: a.txt, weight: .nan}", "weight nan"),
        ("- {corpus: a.txt, weight: 1" + "0" * 400 + "}", "a number above 0"),
        ("- {corpus: nowhere.txt}", "paths are relative to the list"),
        ("- {corpus: a.txt, corpus: b.txt}", "there twice"),
        ("- {corpus: a.txt, weight: 1}\n- {corpus: b.txt}", "b.txt has no weight"),
        ("- {corpus: a.txt, text_column: 3}", "text_column 3"),
        ("- {corpus: more.yaml}", "is a .yaml file"),
        ("- {corpus: a.txt", "is not YAML"),
        ("- !!python/object/apply:os.system [true]", "is not YAML"),
        ("- {corpus: ~nobodyhere/x.txt}", "paths are relative to the list"),
    ],
)
def test_a_list_of_sources_that_means_nothing_is_refused(tmp_path: Path, text: str, word: str) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("Text.\n")
    with pytest.raises(DataError, match=word.replace(".", r"\.")):
        read_sources(write(tmp_path, text), "text")


def test_a_list_that_is_not_there_is_refused_and_a_pipe_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "sources.yaml")
    for name in ("sources.yaml", "nowhere.yaml"):
        with pytest.raises(UsageError, match=name):
            read_sources(str(tmp_path / name), "text")


def test_a_bomb_of_aliases_as_a_weight_is_refused_at_once(tmp_path: Path) -> None:
    lines = ["- {corpus: a.txt, weight: &l0 [x, x, x, x, x, x, x, x, x]}"]
    lines += [f"- {{corpus: a.txt, weight: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]}}" for n in range(1, 12)]
    (tmp_path / "a.txt").write_text("Text.\n")
    with pytest.raises(DataError, match="entry 1 has weight"):
        read_sources(write(tmp_path, "\n".join(lines)), "text")


def test_the_built_in_corpus_goes_by_its_bare_name_and_a_folder_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "sample").mkdir()
    listed = write(tmp_path, "- {corpus: sample}\n- {corpus: ./sample}\n- {corpus: sample/}\n- {corpus: owner/name}\n")
    corpora = [source.corpus for source in read_sources(listed, "text")]
    assert (corpora[0], corpora[3]) == ("sample", "owner/name")
    assert [os.path.normpath(corpus) for corpus in corpora[1:3]] == [str(tmp_path / "sample")] * 2


def test_brackets_in_the_name_of_the_lists_folder_are_no_pattern(tmp_path: Path) -> None:
    folder = tmp_path / "texts [old]"
    folder.mkdir()
    (folder / "a.txt").write_text("Text.\n")
    (source,) = read_sources(write(folder, '- {corpus: "*.txt"}'), "text")
    assert glob.glob(source.corpus) == [str(folder / "a.txt")]


def rows(order: object, start: int, count: int) -> list[int]:
    return order.rows(torch.arange(start, start + count)).tolist()  # type: ignore[attr-defined]


def test_each_pass_draws_every_row_of_the_source_that_lasts_longest_once() -> None:
    order = order_rows([0, 10, 37], 60, [1.0, 1.0, 1.0], SEED)
    for epoch in range(3):
        drawn = Counter(rows(order, epoch * order.pass_length, order.pass_length))
        assert [drawn[row] for row in range(10, 37)] == [1] * 27


def test_three_passes_draw_every_row_of_every_source() -> None:
    order = order_rows([0, 10, 37], 60, [5.0, 1.0, 0.3], SEED)
    assert set(rows(order, 0, 3 * order.pass_length)) == set(range(60))


def test_shares_of_the_rows_drawn_are_those_of_the_weights() -> None:
    first, weights = [0, 11, 48], [5.0, 2.0, 3.0]
    order = order_rows(first, 300, weights, SEED)
    drawn = torch.tensor(rows(order, 0, 3 * order.pass_length))
    source = torch.bucketize(drawn, torch.tensor(first), right=True) - 1
    share = source.bincount(minlength=3) / len(source)
    # A pass takes whole rows: each source's share is off by half a row of a pass at most.
    torch.testing.assert_close(share, torch.tensor(weights) / 10, rtol=0, atol=1 / order.pass_length)


def test_rows_of_one_source_are_drawn_equally_often_up_to_one() -> None:
    order = order_rows([0, 7], 50, [3.7, 1.0], SEED)
    for count in (1, 17, order.pass_length, 5 * order.pass_length + 3):
        drawn = Counter(rows(order, 0, count))
        for source in (range(7), range(7, 50)):
            times = [drawn[row] for row in source]
            # Slots of a source are shuffled within a pass, so one pass may be under way in another order.
            assert max(times) - min(times) <= 1 + -(-order.taken[0] // 7) * (count % order.pass_length > 0)
    whole = Counter(rows(order, 0, 7 * order.pass_length))
    assert len({whole[row] for row in range(7)}) == 1


def test_order_does_not_depend_on_how_positions_are_asked_for() -> None:
    order = order_rows([0, 7], 50, [2.0, 1.0], SEED)
    together = order.rows(torch.arange(300).view(3, 100)).flatten().tolist()
    assert together == [rows(order, position, 1)[0] for position in range(300)]


def test_sources_without_weights_are_one_shuffle() -> None:
    assert rows(order_rows([0, 7], 50, None, SEED), 0, 120) == rows(order_rows([0], 50, None, SEED), 0, 120)


def test_another_seed_gives_another_order() -> None:
    orders = [order_rows([0, 7], 50, [2.0, 1.0], seed) for seed in (SEED, SEED + 1)]
    assert rows(orders[0], 0, 60) != rows(orders[1], 0, 60)


@pytest.mark.parametrize("weights", [[1.0, 1e-18], [1e-300, 1.0], [5e-324, 1.0]])
def test_weights_too_far_apart_to_count_are_refused(weights: list[float]) -> None:
    with pytest.raises(DataError, match="bring their weights nearer"):
        order_rows([0, 10], 20, weights, SEED)


def test_a_weighted_source_without_rows_is_refused() -> None:
    with pytest.raises(DataError, match="source 2 gives no row"):
        order_rows([0, 10, 10], 20, [1.0, 1.0, 1.0], SEED)
