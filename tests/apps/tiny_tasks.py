"""Toy tasks of every kind with a rule that is learned in seconds, and their options of
Finetuning.py.
"""

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from electra_albert.apps.finetune import main as finetune
from tests.apps import tiny_run
from tests.apps.tiny_run import Ended, as_argv, succeed

# Words of the tiny run's corpus.
ANIMALS = ("cat", "dog", "owl", "fox", "hen", "bear", "wolf", "frog")
PLACES = ("river", "garden", "market", "forest", "bridge", "tower")
DEEDS = ("crossed", "watched", "left", "reached", "painted", "searched")
KINDS = ("old", "quiet", "small", "bright", "clever", "tired")
THINGS = ("lamp", "key", "letter", "basket", "candle", "bottle")
SEED = 3
_SETTINGS = """--max_seq_length 48 --num_train_epochs 16 --learning_rate 0.003 --layer_decay 1.0
--hidden_dropout_prob 0.0 --attention_probs_dropout_prob 0.0 --classifier_dropout_prob 0.0
--evals_per_epoch 1 --per_device_train_batch_size 16 --per_device_eval_batch_size 32
--logging_steps 10 --precision fp32 --device cpu"""
_SIZES = {"train": 160, "dev": 48, "test": 24}


class Tiny(NamedTuple):
    """The files of a task, and the score that shows that its rule was learned."""

    task: str
    folder: Path
    main_metric: str
    good_score: float
    test_gold: list[Any]  # labels of the test set by the rule; the files do not have them
    extra: tuple[object, ...] = ()  # task-specific options

    def options(self, model: Path | None, output: Path | None, *more: object) -> list[str]:
        """Options of Finetuning.py; `more` comes last and takes precedence."""
        return options(self.task, self.folder, model, output, *self.extra, *more)


def options(
    task: str, folder: Path | None, model: Path | None, output: Path | None, *more: object
) -> list[str]:
    """Options for training in seconds without dropout, except those that are None; `more` comes
    last.
    """
    named = {"task": task, "data_dir": folder, "model": model, "output_dir": output}
    words = as_argv({name: value for name, value in named.items() if value is not None})
    return [*words, *_SETTINGS.split(), "--seed", str(SEED), *map(str, more)]


def tune(*words: object) -> Ended:
    """Run Finetuning.py with these options and assert success."""
    return succeed(finetune.main, *words)


def results(folder: Path) -> dict[str, Any]:
    """results.json of a sweep."""
    found: dict[str, Any] = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    return found


def losses(folder: Path) -> list[float]:
    """The losses in a seed's log."""
    return [row["loss"] for row in tiny_run.rows(folder / f"seed-{SEED}") if "loss" in row]


class Story(NamedTuple):
    """A generated sentence and its words."""

    text: str
    kind: str
    animal: str
    deed: str
    place: str

    @property
    def is_early(self) -> int:
        """The classification rule: whether the animal is in the first half of the list."""
        return int(ANIMALS.index(self.animal) < len(ANIMALS) // 2)


def stories(count: int, seed: int) -> list[Story]:
    """Generated sentences, reproducible by seed."""
    draw = random.Random(seed)
    made = []
    for _ in range(count):
        words = [draw.choice(words) for words in (KINDS, ANIMALS, DEEDS, PLACES)]
        made.append(Story("The {} {} {} the {} today.".format(*words), *words))
    return made


def _sets() -> dict[str, list[Story]]:
    return {name: stories(size, seed) for seed, (name, size) in enumerate(_SIZES.items())}


def write(file: Path, content: str | Sequence[Sequence[object]]) -> None:
    """Write a text or the rows of a table."""
    if not isinstance(content, str):
        content = "".join("\t".join(map(str, row)) + "\n" for row in content)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content, encoding="utf-8")


def _write_pairs(
    folder: Path, label: str, sets: dict[str, list[tuple[str, str, Any]]], *suffixes: str
) -> list[Any]:
    """Write tables of two texts and a label, which the test set lacks; returns the labels of the
    test set.
    """
    for name, rows in sets.items():
        table = [("index", "sentence1", "sentence2", label)]
        table += [(i, *row) for i, row in enumerate(rows)]
        columns = 3 if name == "test" else 4
        for suffix in ("",) if name == "train" else suffixes or ("",):
            write(folder / f"{name}{suffix}.tsv", [row[:columns] for row in table])
    return [row[-1] for row in sets["test"]]


def cola(folder: Path) -> Tiny:
    """One text; only the test set's file has a header."""
    folder /= "CoLA"
    for name, found in _sets().items():
        write(folder / f"{name}.tsv", [("made", one.is_early, "", one.text) for one in found])
    rows = [("index", "sentence"), *((i, one.text) for i, one in enumerate(found))]
    write(folder / "test.tsv", rows)
    gold = [str(story.is_early) for story in found]
    return Tiny("cola", folder, "matthews_correlation", 0.9, gold)


def rte(folder: Path) -> Tiny:
    """Two texts; the second one determines the label."""
    labels, sets = ("not_entailment", "entailment"), {}
    for name, found in _sets().items():
        pairs = zip([*found[1:], found[0]], found, strict=True)
        sets[name] = [(one.text, two.text, labels[two.is_early]) for one, two in pairs]
    gold = _write_pairs(folder / "RTE", "label", sets)
    return Tiny("rte", folder / "RTE", "accuracy", 0.9, gold, ("--num_train_epochs", 24))


def mnli(folder: Path) -> Tiny:
    """Three classes, determined by the second text, and two evaluation sets."""
    seconds = {"contradiction": "The lamp.", "entailment": "The key.", "neutral": "The letter."}
    sets = {}
    for name, found in _sets().items():
        drawn = zip(found, random.Random(name).choices(list(seconds), k=len(found)), strict=True)
        sets[name] = [(story.text, seconds[label], label) for story, label in drawn]
    gold = _write_pairs(folder / "MNLI", "gold_label", sets, "_matched", "_mismatched")
    # With the untrained pooler, only some seeds learn three classes.
    return Tiny("mnli", folder / "MNLI", "accuracy", 0.9, gold, ("--head", "electra"))


def stsb(folder: Path) -> Tiny:
    """Regression: the index of the place in the list."""
    sets = {}
    for name, found in _sets().items():
        scores = [float(PLACES.index(one.place)) for one in found]
        second = "The same was said before."
        sets[name] = [(one.text, second, score) for one, score in zip(found, scores, strict=True)]
    gold = _write_pairs(folder / "STS-B", "score", sets)
    return Tiny("stsb", folder / "STS-B", "spearman", 0.75, gold, ("--precision", "bf16"))


def _squad(name: str, folder: Path, version: str, *extra: object) -> Tiny:
    for set_name, found in _sets().items():
        paragraphs, gold = [], []
        for i, story in enumerate(found):
            context = f"It was told before. {story.text} {found[i - 1].kind} nights came."
            answer = {"text": story.place, "answer_start": context.index(story.place)}
            question: dict[str, Any] = {"id": f"{set_name}-v{version}-{i}", "answers": [answer]}
            question["question"] = "Which place was it?"
            gold.append(story.place)
            if version == "2.0":
                question["is_impossible"] = i % 3 == 0
            if version == "2.0" and i % 3 == 0:
                context = context.replace(f" the {story.place}", " nothing")
                question["answers"], gold[-1] = [], ""
            paragraphs.append({"context": context, "qas": [question]})
        content = {"version": "1", "data": [{"title": "tales", "paragraphs": paragraphs}]}
        write(folder / f"{set_name}-v{version}.json", json.dumps(content))
    return Tiny(name, folder, "f1", 0.8, gold, extra)


def squad(folder: Path) -> Tiny:
    """Question answering: the answer is the name of the place."""
    # 48 tokens: two windows per passage.
    return _squad("squad", folder / "squad", "1.1", "--num_train_epochs", 8)


def squad_v2(folder: Path) -> Tiny:
    """Like squad, but a third of the passages has no answer."""
    more = ("--max_seq_length", 64, "--num_train_epochs", 12)
    return _squad("squad_v2", folder / "squad2", "2.0", *more)


def race(folder: Path) -> Tiny:
    """The correct option names a place; two questions per passage, half of them easy."""
    gold: list[str] = []
    for name, found in _sets().items():
        draw = random.Random(name)
        for i in range(0, len(found), 2):
            letters = draw.choices("ABCD", k=2)
            options = []
            for story, letter in zip(found[i : i + 2], letters, strict=True):
                options.append([draw.choice(THINGS) for _ in "ABCD"])
                options[-1]["ABCD".index(letter)] = story.place
            content = {
                "article": f"{found[i].text} {found[i + 1].text}",
                "questions": ["What did the _ look like?", "Where was it?"],
                "options": options,
                "answers": letters,
                "id": f"{i:03}.txt",
            }
            gold += letters if name == "test" else []
            level = "middle" if i < len(found) / 2 else "high"
            write(folder / "RACE" / name / level / f"{i:03}.txt", json.dumps(content))
    return Tiny("race", folder / "RACE", "accuracy", 0.8, gold, ("--num_train_epochs", 8))


def ner(folder: Path) -> Tiny:
    """Entities: adjective and animal (two words), and places (one word); each third example is
    twice as long.
    """
    for name, found in _sets().items():
        tagged = [_tagged(story) for story in found]
        for words, longer in zip(tagged[::3], [tagged[-1], *tagged[2::3]], strict=False):
            words += longer
        write(folder / "ner" / f"{name}.conll", "\n".join(map(_lines, tagged)))
    return Tiny("ner", folder / "ner", "f1", 0.8, [[tag for _, tag in words] for words in tagged])


def _tagged(story: Story) -> list[tuple[str, str]]:
    tags = {story.kind: "B-ANIMAL", story.animal: "I-ANIMAL", story.place: "B-PLACE"}
    return [(word, tags.get(word, "O")) for word in story.text.replace(".", " .").split()]


def _lines(words: list[tuple[str, str]]) -> str:
    return "".join(f"{word}\t{tag}\n" for word, tag in words)


MAKERS: dict[str, Callable[[Path], Tiny]] = {
    make.__name__: make for make in (cola, rte, mnli, stsb, squad, squad_v2, race, ner)
}
