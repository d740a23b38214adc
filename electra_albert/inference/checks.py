"""What a program hands to the inference calls, checked: a mistake is refused in one line that says what was found."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from electra_albert.contracts import DataError, UsageError
from electra_albert.inference.fill_mask import shorten

Text = str | tuple[str, str]  # one text, or a pair of them
_DEVICES = "give cpu, cuda, cuda:1 or auto"


def as_texts(given: object, *, may_be_pairs: bool) -> list[Text]:
    """One text, a pair where pairs make sense, or a list of them, as a list; UsageError for anything else."""
    texts: list[Any] = given if isinstance(given, list) else [given]
    for index, text in enumerate(texts):
        is_pair = isinstance(text, tuple) and len(text) == 2 and all(isinstance(part, str) for part in text)
        if not isinstance(text, str) and not (is_pair and may_be_pairs):
            wanted = "a str, a pair (str, str)" if may_be_pairs else "a str"
            raise UsageError(
                f"{name_of(given, index)}{type(text).__name__} is no text; give {wanted} or a list of them"
            )
        for part in (text,) if isinstance(text, str) else text:
            if not is_whole(part):
                raise DataError(
                    f"{name_of(given, index)}{shorten(part)!r} holds half a character (a lone surrogate); "
                    "decode it anew"
                )
    return texts


def as_questions(questions: object, contexts: object) -> list[tuple[str, str]]:
    """A question and its context, or lists of them, as pairs; UsageError where they do not go together."""
    pairs = [[str(text) for text in as_texts(given, may_be_pairs=False)] for given in (questions, contexts)]
    if isinstance(questions, list) != isinstance(contexts, list) or len(pairs[0]) != len(pairs[1]):
        raise UsageError(
            f"{len(pairs[0])} questions and {len(pairs[1])} contexts; give a str of each, or lists of the same length"
        )
    return list(zip(*pairs, strict=True))


def with_options(asked: list[tuple[str, str]], questions: object, options: object) -> list[tuple[str, str, list[str]]]:
    """Context, question and options of each pair; UsageError where options are no list of str for each question."""
    lists: list[Any] = options if isinstance(questions, list) and isinstance(options, list) else [options]
    is_each = len(lists) == len(asked) and all(isinstance(some, list) and some for some in lists)
    if not is_each or not all(isinstance(option, str) for some in lists for option in some):
        raise UsageError("options are not a list of str for each question; give one or more to each")
    return [
        (context, question, [str(option) for option in as_texts(some, may_be_pairs=False)])
        for (question, context), some in zip(asked, lists, strict=True)
    ]


def is_whole(text: str) -> bool:
    """Whether a text holds no half of a character, which no tokenizer takes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def name_of(given: object, index: int) -> str:
    """What a message begins with: the place in the caller's list, where it is one."""
    return f"texts[{index}]: " if isinstance(given, list) else ""


def as_targets(given: object) -> list[str]:
    """One target or several as a list; UsageError for anything that is no str, and for none at all."""
    if isinstance(given, bytes) or not isinstance(given, str | Iterable):
        raise UsageError(f"targets={_shown(given)} is {type(given).__name__}; give a str or a list of them")
    targets = [given] if isinstance(given, str) else list(given)
    for target in targets:
        if not isinstance(target, str):
            raise UsageError(f"target {_shown(target)} is {type(target).__name__}, no str; give pieces or words")
        if not is_whole(target):
            raise UsageError(f"target {shorten(target)!r} holds half a character (a lone surrogate); decode it anew")
    if not targets:
        raise UsageError("targets is empty; name one at least, or leave it out")
    return targets


def as_count(name: str, given: object) -> int:
    """A whole number, 1 or more, of any type that can count; UsageError for anything else."""
    try:
        count = operator.index(given)  # type: ignore[arg-type]
    except TypeError:
        count = None
    if count is None or isinstance(given, bool):
        raise UsageError(f"{name}={_shown(given)} is {type(given).__name__}; give a whole number, 1 or more")
    if count < 1:
        raise UsageError(f"{name}={shorten(str(count))} must be at least 1")
    return count


def as_device(given: object) -> torch.device:
    """cpu, a GPU that is there, or for auto the one or the other; UsageError for anything else."""
    if not isinstance(given, str | torch.device):
        raise UsageError(f"device={_shown(given)} is {type(given).__name__}; {_DEVICES}")
    name = str(given)
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or str(device) != name:  # a number too large begins again at 0
        raise UsageError(f"device={_shown(name)} is no device; {_DEVICES}")
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"device={_shown(name)} is none that models are computed on here; {_DEVICES}")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(f"device={name!r}: PyTorch finds {torch.cuda.device_count()} GPUs here; give cpu or auto")
    return device


def as_path(given: object) -> Path:
    """A path; UsageError for what is none."""
    try:
        return Path(given)  # type: ignore[arg-type]
    except TypeError:
        raise UsageError(
            f"path={_shown(given)} is {type(given).__name__}; give the folder of a run or of a model as a str or Path"
        ) from None


def _shown(value: object) -> str:
    return shorten(repr(value))
