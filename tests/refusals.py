"""Tables of refusals, written as text, and the assertion of one refusal."""

from collections.abc import Callable
from typing import Any

import pytest

from electra_albert import contracts


def rows(text: str) -> list[list[str]]:
    """The cells of a table with a row per line and | between the columns."""
    return [[cell.strip() for cell in line.split("|")] for line in text.strip().splitlines()]


def assert_refused(
    error: str, word: str, call: Callable[..., object], /, *values: Any, **options: Any
) -> str:
    """Assert that a call raises this class of error, in one printable line that names `word`."""
    with pytest.raises(getattr(contracts, error)) as refused:
        call(*values, **options)
    message = str(refused.value)
    assert word in message
    assert message.isprintable()
    return message
