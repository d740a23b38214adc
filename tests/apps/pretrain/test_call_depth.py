"""From a command to `backward()` one reads at most four calls of ours."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any, NoReturn

import pytest

from electra_albert.apps.pretrain import main as pretrain
from electra_albert.training import loop
from tests.apps.conftest import Finished

MOST_CALLS = 4


class _Reached(Exception):
    pass


def _stop(*_: Any, **__: Any) -> NoReturn:
    raise _Reached


def test_the_command_is_four_calls_from_backward(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "backward", _stop)
    monkeypatch.setattr(loop._Loop, "_try_out", lambda *_: None)  # a pass before the first update
    with pytest.raises(_Reached) as reached:
        pretrain.main(finished.options(tmp_path / "run"))
    frames = [
        frame for frame in traceback.extract_tb(reached.value.__traceback__) if "electra_albert" in frame.filename
    ]
    names = [frame.name for frame in frames if "/tests/" not in frame.filename]
    assert names[0] == "main"
    assert len(names) <= MOST_CALLS, names  # the call of backward itself is made in the last of them
