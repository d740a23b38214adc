"""Several sources: what the file that lists them may say, and how often the rows of each are drawn."""

import glob
import os
import re
from collections import Counter
from pathlib import Path

import pytest
import torch

from electra_albert.contracts import DataError, UsageError
from electra_albert.corpus.mixture import ExampleOrder, Source, order_rows, read_sources, source_names
from tests.corpus.reading import write

SEED = 5


def listed(folder: Path, text: str) -> list[Source]:
    for name in ("a.txt", "b.txt"):
        write(folder, "Text.\n", name)
    return read_sources(str(write(folder, text, "sources.yaml")), "text")


def test_sources_are_read_with_paths_relative_to_the_file(tmp_path: Path) -> None:
    assert read_sources("my.txt", "body") == [Source("my.txt", "body", None)]
    found = listed(tmp_path, "- {corpus: a.txt, weight: 3}\n- {corpus: sample, weight: 1, text_column: body}\n")
    assert found == [Source(str(tmp_path / "a.txt"), "text", 3), Source("sample", "body", 1)]
    (tmp_path / "sample").mkdir()  # the built-in corpus goes by its bare name, a folder by its path
    found = listed(tmp_path, "- {corpus: sample}\n- {corpus: ./sample}\n- {corpus: owner/name}\n")
    assert [os.path.normpath(source.corpus) for source in found] == ["sample", str(tmp_path / "sample"), "owner/name"]


def test_brackets_in_the_name_of_the_lists_folder_are_no_pattern(tmp_path: Path) -> None:
    (folder := tmp_path / "texts [old]").mkdir()
    (source,) = listed(folder, '- {corpus: "a*.txt"}')
    assert glob.glob(source.corpus) == [str(folder / "a.txt")]


def test_names_of_sources_are_short_and_never_repeat() -> None:
    corpora = ["/x/wiki/*.txt.xz", "a&b", "owner/name:train", "*", "/y/wiki/", "docs", "/z/docs", "docs-7", "/a/docs"]
    names = source_names([Source(corpus, "text") for corpus in corpora])
    assert (names[0], names[5], len(set(names))) == ("wiki", "docs", len(corpora))
    assert all(re.fullmatch("[A-Za-z0-9._-]+", name) for name in names)


LEVELS = ["x", *(f"*l{n}" for n in range(11))]
BOMB = [f"- {{corpus: a.txt, weight: &l{n} [{', '.join([level] * 9)}]}}" for n, level in enumerate(LEVELS)]
REFUSED = {
    "just words": "lists no sources",
    "- {weight: 1}": "no corpus",
    "- {corpus: a.txt, wieght: 2}": "wieght",
    "- {corpus: a.txt, weight: 0}": "weight",
    "- {corpus: a.txt, weight: .nan}": "weight",
    "- {corpus: a.txt, weight: 1" + "0" * 400 + "}": "weight",
    "\n".join(BOMB): "weight",
    "- {corpus: nowhere.txt}": "nowhere.txt",
    "- {corpus: a.txt, corpus: b.txt}": "twice",
    "- {corpus: a.txt, weight: 1}\n- {corpus: b.txt}": "b.txt has no weight",
    "- {corpus: a.txt, text_column: 3}": "text_column",
    "- {corpus: more.yaml}": "yaml",
    "- !!python/object/apply:os.system [true]": "YAML",
    "- {corpus: ~nobodyhere/x.txt}": "nobodyhere",
}


def test_a_list_of_sources_that_means_nothing_is_refused(tmp_path: Path) -> None:
    for text, word in REFUSED.items():
        with pytest.raises(DataError, match=word):
            listed(tmp_path, text)
    os.mkfifo(tmp_path / "pipe.yaml")  # is not waited for
    for name in ("pipe.yaml", "nowhere.yaml"):
        with pytest.raises(UsageError, match=name):
            read_sources(str(tmp_path / name), "text")


# The order of the rows.


def rows(order: ExampleOrder, start: int, count: int) -> list[int]:
    return order.rows(torch.arange(start, start + count)).tolist()


def test_each_pass_draws_every_row_of_the_source_that_lasts_longest_once() -> None:
    order = order_rows([0, 10, 37], 60, [1.0, 1.0, 1.0], SEED)
    for epoch in range(3):
        drawn = Counter(rows(order, epoch * order.pass_length, order.pass_length))
        assert [drawn[row] for row in range(10, 37)] == [1] * 27
    order = order_rows([0, 10, 37], 60, [5.0, 1.0, 0.3], SEED)
    assert set(rows(order, 0, 3 * order.pass_length)) == set(range(60))


def test_shares_of_the_rows_drawn_are_those_of_the_weights() -> None:
    first, weights = [0, 11, 48], [5.0, 2.0, 3.0]
    order = order_rows(first, 300, weights, SEED)
    drawn = order.rows(torch.arange(3 * order.pass_length))
    share = torch.bucketize(drawn, torch.tensor(first), right=True).bincount(minlength=4)[1:] / len(drawn)
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


def test_order_depends_on_the_seed_and_not_on_how_positions_are_asked_for() -> None:
    order = order_rows([0, 7], 50, [2.0, 1.0], SEED)
    together = order.rows(torch.arange(300).view(3, 100)).flatten().tolist()
    assert together == [rows(order, position, 1)[0] for position in range(300)]
    assert together[:60] != rows(order_rows([0, 7], 50, [2.0, 1.0], SEED + 1), 0, 60)
    one, several = (order_rows(first, 50, None, SEED) for first in ([0], [0, 7]))
    assert rows(several, 0, 120) == rows(one, 0, 120), "sources without weights are one shuffle"


def test_weights_too_far_apart_to_count_and_a_source_without_rows_are_refused() -> None:
    for weights in ([1.0, 1e-18], [5e-324, 1.0]):
        with pytest.raises(DataError, match="nearer"):
            order_rows([0, 10], 20, weights, SEED)
    with pytest.raises(DataError, match="source 2 gives no row"):
        order_rows([0, 10, 10], 20, [1.0, 1.0, 1.0], SEED)
