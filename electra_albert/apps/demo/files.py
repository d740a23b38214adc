"""A text file in and a text file out for LM_DEMO.py, and the count of what was done between them. "-" is a pipe."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from electra_albert.contracts import DataError, UsageError

if TYPE_CHECKING:
    from electra_albert.inference.rewrite import Rewriter
    from electra_albert.inference.splice import Rewritten

MASK = "[MASK]"  # what a user writes, whatever the tokenizer calls its mask
PIPE = "-"
BYTE_ORDER_MARK = "\ufeff"


def read_lines(source: str, tally: Tally | None = None) -> Iterator[str]:
    """Lines of a UTF-8 file, or of stdin, with their endings; only a line feed ends one. `tally` is told of a BOM.

    Raises UsageError where it cannot be read, DataError where it is not UTF-8.
    """
    name = "stdin" if source == PIPE else source
    try:
        file = sys.stdin.fileno() if source == PIPE else source
        with open(file, encoding="utf-8", newline="\n", closefd=source != PIPE) as stream:
            first = next(stream, "")
            if first.startswith(BYTE_ORDER_MARK) and tally is not None:
                tally.has_byte_order_mark = True
            yield first.removeprefix(BYTE_ORDER_MARK)
            yield from stream
    except UnicodeDecodeError:
        raise DataError(f"{name} is not UTF-8 text; convert it first") from None
    except OSError as error:
        raise UsageError(f"cannot read {name} ({error.strerror}); name a text file, one sentence a line") from None


def read_sentences(source: str) -> list[tuple[int, str]]:
    """Lines that are not blank, with their numbers; DataError where there is none."""
    sentences = [(number, line.strip()) for number, line in enumerate(read_lines(source), 1) if line.strip()]
    if not sentences:
        raise no_sentence(source)
    return sentences


def no_sentence(source: str) -> DataError:
    """What to raise for an input without any text."""
    name = "stdin" if source == PIPE else source
    return DataError(f"{name} holds no sentence; write one a line, with or without {MASK} for a missing word")


def check_output(source: str, target: str) -> None:
    """UsageError unless `target` is a file that may be written or replaced, and not the input itself."""
    if target == PIPE:
        return
    path = Path(target)
    if path.exists() and not path.is_file():
        raise UsageError(f"cannot write {target}: it is no regular file; name a file, or {PIPE} for stdout")
    if source != PIPE and path.exists() and Path(source).exists() and path.samefile(source):
        raise UsageError(f"--output {target} is the input itself, which is not overwritten; name another file")
    folder = path.absolute().parent
    if not folder.is_dir():
        raise UsageError(f"cannot write {target}: {folder} is no folder; make it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"cannot write {target}: no permission in {folder}; name a file elsewhere")


@contextmanager
def open_output(target: str) -> Iterator[TextIO]:
    """Stdout, or a file that appears under its name when the block has ended well, and not otherwise."""
    if target == PIPE:
        use_utf8(sys.stdout)
        yield sys.stdout
        return
    path = Path(os.path.realpath(target))  # of a link, what it points to is replaced
    beside = path.with_name(f".{path.name}.writing-{os.getpid()}")
    try:
        with beside.open("w", encoding="utf-8", newline="") as stream:
            if path.exists():  # before a word is written, which not everybody may be allowed to read
                beside.chmod(stat.S_IMODE(path.stat().st_mode))
            yield stream
        os.replace(beside, path)
    except OSError as error:
        raise UsageError(f"cannot write {target} ({error.strerror}); name a file elsewhere") from None
    finally:
        beside.unlink(missing_ok=True)


def use_utf8(stream: TextIO) -> None:
    """Write UTF-8 from here on, whatever the terminal's encoding: for text and JSON that another program reads."""
    if isinstance(stream, TextIOWrapper):
        stream.reconfigure(encoding="utf-8", errors="strict", newline="")


@dataclass
class Tally:
    """What was done to the lines of a file."""

    blank: int = 0
    rewritten: int = 0
    left: int = 0  # lines without a token that may be masked
    filled: int = 0  # masks of the user's
    masked: int = 0
    changed: int = 0
    changed_probability_sum: float = 0.0
    unchanged: int = 0  # tokens, masked or not, of the lines the demo masked itself
    unchanged_probability_sum: float = 0.0
    no_character: int = 0  # characters written as U+FFFD
    has_byte_order_mark: bool = False
    _is_replacing: bool = field(default=False, init=False)  # in the line whose parts are being added

    @property
    def lines(self) -> int:
        """Lines that hold text."""
        return self.rewritten + self.left

    def add(self, result: Rewritten | None, *, is_last: bool = True) -> None:
        """Count one line, None for a blank one, or a part of one, the last or another."""
        if result is None:
            self.blank += 1
            return
        self._is_replacing |= bool(result.replaced)
        if is_last:
            self.rewritten += self._is_replacing
            self.left += not self._is_replacing
            self._is_replacing = False
        self.no_character += result.no_character_count
        if result.is_filled:
            self.filled += len(result.replaced)
            return
        changed = [replacement.probability for replacement in result.replaced if replacement.is_changed]
        self.masked += len(result.replaced)
        self.changed += len(changed)
        self.changed_probability_sum += sum(probability or 0.0 for probability in changed)
        self.unchanged += result.unchanged_count
        self.unchanged_probability_sum += result.unchanged_probability_sum

    def report(self, *, is_judged: bool) -> str:
        """The counts and, where there is a discriminator, its mean probability of a replacement, line by line."""
        lines = [
            f"lines: {self.rewritten:,} rewritten, {self.left:,} with nothing to mask left as they are, "
            f"{self.blank:,} blank",
            f"tokens masked: {self.masked:,}, of which changed: {self.changed:,}; {MASK}s filled: {self.filled:,}",
        ]
        if is_judged:
            at_changed = _mean(self.changed_probability_sum, self.changed)
            at_unchanged = _mean(self.unchanged_probability_sum, self.unchanged)
            lines.append(
                f"discriminator's mean probability of a replacement: {at_changed} at the {self.changed:,} changed "
                f"tokens, {at_unchanged} at the {self.unchanged:,} unchanged ones"
            )
        if self.no_character:
            lines.append(f"written as \ufffd, a drawn token being only a part of a character: {self.no_character:,}")
        if self.has_byte_order_mark:
            lines.append("the byte order mark at the beginning of the input is left out")
        return "\n".join(lines)


def rewrite_file(rewriter: Rewriter, source: str, target: str) -> None:
    """Rewrite a file line by line and say what was done, on stderr where the text goes to stdout."""
    from tqdm import tqdm

    from electra_albert.inference.rewrite import rewrite_stream

    tally = Tally()
    with open_output(target) as stream:
        lines = tqdm(read_lines(source, tally), unit=" lines", disable=None, leave=False)
        for line, result, is_last in rewrite_stream(rewriter, lines):
            tally.add(result, is_last=is_last)
            stream.write(line)
        if not tally.lines:
            raise no_sentence(source)
    where = sys.stderr if target == PIPE else sys.stdout
    print(tally.report(is_judged=rewriter.discriminator is not None), file=where)
    if target != PIPE:
        print(f"written to {target}")


def _mean(total: float, count: int) -> str:
    return f"{total / count:.1%}" if count else "-"
