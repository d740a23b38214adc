"""What becomes of case, accents and commas behind digits, where the user says so instead of the tokenizer's files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from electra_albert.contracts import UsageError

# By this much a piece such as "▁1," is made less likely: more than any cut of it without the comma costs, so none is
# used. Version 4 of transformers takes the same number, and files that it wrote hold scores made with it.
DIGIT_COMMA_NATS = 100.0


class TextOptions(NamedTuple):
    """What is done with text. None leaves it to the tokenizer's own files."""

    do_lower_case: bool | None = None
    keep_accents: bool | None = None
    split_digit_comma: bool | None = None

    def given(self) -> dict[str, bool]:
        """do_lower_case and keep_accents, where the user chose them."""
        options = {"do_lower_case": self.do_lower_case, "keep_accents": self.keep_accents}
        return {name: value for name, value in options.items() if value is not None}

    def over(self, config: dict[str, Any]) -> dict[str, Any]:
        """The settings of a tokenizer_config.json with those of these options that are told, in stock's names."""
        bert = {} if self.keep_accents is None else {"strip_accents": not self.keep_accents}  # BERT's name
        return config | self.given() | bert

    def refuse(self, file: Path, why: str, *names: str) -> None:
        """UsageError that names the first option told, of `names` or of all."""
        told = [name for name in names or self._fields if getattr(self, name) is not None]
        if told:
            raise UsageError(f"--{told[0]} cannot be told to {file}, {why}; leave it out or name another tokenizer")


def apply_digit_comma(vocab: list[tuple[str, float]], is_split: bool | None) -> list[tuple[str, float]]:
    """Unigram pieces with the scores that keep a comma apart from the digit before it, or allow them together.

    Applied twice it changes nothing more. Google's own code cuts the comma off each piece once the text is encoded;
    here the text is encoded as if there were no such pieces, which now and then cuts the digits in another way.
    """
    if is_split is None:
        return vocab
    lowest = min((score for piece, score in vocab if not ends_in_digit_comma(piece)), default=0.0)

    def rescored(score: float) -> float:
        is_lowered = score < lowest - DIGIT_COMMA_NATS / 2
        return score + DIGIT_COMMA_NATS * (is_lowered - is_split)

    return [(piece, rescored(score) if ends_in_digit_comma(piece) else score) for piece, score in vocab]


def ends_in_digit_comma(piece: str) -> bool:
    """Whether the last two characters are a digit, in any script, and a comma."""
    return piece.endswith(",") and piece[-2:-1].isdigit()
