"""Several sources: the file that lists them, and how often the examples of each are drawn."""

import glob
import os
import re
from collections import Counter
from pathlib import Path

import torch

from electra_albert.corpus.mixture import (
    ExampleOrder,
    Source,
    order_examples,
    read_sources,
    source_names,
)
from tests.corpus.reading import write
from tests.refusals import assert_refused

SEED = 5


def listed(folder: Path, text: str) -> list[Source]:
    for name in ("a.txt", "b.txt"):
        write(folder, "Text.\n", name)
    return read_sources(str(write(folder, text, "sources.yaml")), "text")


def test_sources_are_read_with_paths_relative_to_the_file(tmp_path: Path) -> None:
    assert read_sources("my.txt", "body") == [Source("my.txt", "body", None)]
    text = "- {corpus: a.txt, weight: 3}\n- {corpus: sample, weight: 1, text_column: body}\n"
    first = Source(str(tmp_path / "a.txt"), "text", 3)
    assert listed(tmp_path, text) == [first, Source("sample", "body", 1)]
    (tmp_path / "sample").mkdir()  # a bare name is the built-in corpus, a path is a folder
    sources = listed(tmp_path, "- {corpus: sample}\n- {corpus: ./sample}\n- {corpus: owner/name}\n")
    paths = [os.path.normpath(source.corpus) for source in sources]
    assert paths == ["sample", str(tmp_path / "sample"), "owner/name"]


def test_brackets_in_the_folder_name_of_the_list_are_not_a_glob(tmp_path: Path) -> None:
    folder = tmp_path / "texts [old]"
    folder.mkdir()
    (source,) = listed(folder, '- {corpus: "a*.txt"}')
    assert glob.glob(source.corpus) == [str(folder / "a.txt")]


def test_source_names_are_short_and_unique() -> None:
    listed_names = "/x/wiki/*.txt.xz a&b owner/name:train * /y/wiki/ docs /z/docs docs-7 /a/docs"
    corpora = listed_names.split()
    names = source_names([Source(corpus, "text") for corpus in corpora])
    assert names[0] == "wiki"
    assert names[5] == "docs"
    assert len(set(names)) == len(corpora)
    assert all(re.fullmatch("[A-Za-z0-9._-]+", name) for name in names)


BOMB = "- {corpus: a.txt, weight: &l0 [x]}\n"
for level in range(11):
    BOMB += f"- {{corpus: a.txt, weight: &l{level + 1} [{', '.join([f'*l{level}'] * 9)}]}}\n"
REFUSED = {
    "just words": "lists no sources",
    "- {weight: 1}": "no corpus",
    "- {corpus: a.txt, wieght: 2}": "wieght",
    "- {corpus: a.txt, weight: 0}": "weight",
    "- {corpus: a.txt, weight: .nan}": "weight",
    "- {corpus: a.txt, weight: 1" + "0" * 400 + "}": "weight",
    BOMB: "weight",
    "- {corpus: nowhere.txt}": "nowhere.txt",
    "- {corpus: a.txt, corpus: b.txt}": "twice",
    "- {corpus: a.txt, weight: 1}\n- {corpus: b.txt}": "b.txt has no weight",
    "- {corpus: a.txt, text_column: 3}": "text_column",
    "- {corpus: more.yaml}": "yaml",
    "- !!python/object/apply:os.system [true]": "YAML",
    "- {corpus: a.txt}\n" * 70_000: "larger than",  # regression: the rest was ignored
    "- {corpus: ~nobodyhere/x.txt}": "nobodyhere",
}


def test_an_invalid_list_of_sources_is_refused(tmp_path: Path) -> None:
    for text, word in REFUSED.items():
        assert_refused("DataError", word, listed, tmp_path, text)
    os.mkfifo(tmp_path / "pipe.yaml")  # must not block
    for name in ("pipe.yaml", "nowhere.yaml"):
        assert_refused("UsageError", name, read_sources, str(tmp_path / name), "text")


# The order of the examples.


def indices(order: ExampleOrder, start: int, count: int) -> list[int]:
    return order.indices(torch.arange(start, start + count)).tolist()


def test_each_epoch_draws_every_example_of_the_least_repeated_source_once() -> None:
    order = order_examples([0, 10, 37], 60, [1.0, 1.0, 1.0], SEED)
    for epoch in range(3):
        drawn = Counter(indices(order, epoch * order.examples_per_epoch, order.examples_per_epoch))
        assert [drawn[index] for index in range(10, 37)] == [1] * 27
    order = order_examples([0, 10, 37], 60, [5.0, 1.0, 0.3], SEED)
    assert set(indices(order, 0, 3 * order.examples_per_epoch)) == set(range(60))


def test_shares_of_the_drawn_examples_equal_the_weights() -> None:
    order = order_examples([0, 11, 48], 300, [5.0, 2.0, 3.0], SEED)
    drawn = order.indices(torch.arange(3 * order.examples_per_epoch))
    counts = torch.bucketize(drawn, torch.tensor([11, 48]), right=True).bincount()
    # An epoch takes whole examples, so a share is off by at most half an example.
    expected = torch.tensor([0.5, 0.2, 0.3])
    error = 1 / order.examples_per_epoch
    torch.testing.assert_close(counts / len(drawn), expected, rtol=0, atol=error)


def test_examples_of_one_source_are_drawn_equally_often() -> None:
    order = order_examples([0, 7], 50, [3.7, 1.0], SEED)
    drawn = Counter(indices(order, 0, 7 * order.examples_per_epoch))
    for source in (range(7), range(7, 50)):
        assert len({drawn[index] for index in source}) == 1
    # Up to one after each epoch.
    drawn = Counter(indices(order, 0, 5 * order.examples_per_epoch))
    times = [drawn[index] for index in range(7)]
    assert max(times) - min(times) <= 1


def test_order_depends_on_the_seed_and_not_on_how_positions_are_batched() -> None:
    order = order_examples([0, 7], 50, [2.0, 1.0], SEED)
    together = order.indices(torch.arange(300).view(3, 100)).flatten().tolist()
    assert together == [indices(order, position, 1)[0] for position in range(300)]
    assert together[:60] != indices(order_examples([0, 7], 50, [2.0, 1.0], SEED + 1), 0, 60)
    # Sources without weights are one shuffle.
    assert order_examples([0, 7], 50, None, SEED) == order_examples([0], 50, None, SEED)


def test_weights_too_far_apart_and_a_source_without_examples_are_refused() -> None:
    cases = [([0, 10], [1.0, 1e-18]), ([0, 10], [5e-324, 1.0]), ([0, 10, 10], [1.0] * 3)]
    for first, weights in cases:
        word = "source 2" if first[2:] else "closer"
        assert_refused("DataError", word, order_examples, first, 20, weights, SEED)
