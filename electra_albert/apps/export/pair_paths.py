"""Commands and options as a card tells them: of the folders of a machine only the last name."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import PurePosixPath, PureWindowsPath

from electra_albert.config import BUILT_IN_CORPUS

_BETWEEN_PATHS = re.compile(r"([,=:])")


def without_folders(command: str) -> str:
    """A command with the last name of each path of a machine alone. Raises ValueError for an open quotation mark."""
    return shlex.join(map(last_name, shlex.split(command)))


def last_name(text: str) -> str:
    """What is left of a path, alone or behind `=`, `:` or a comma, when its folders are left out; other text stays.

    A path is what is absolute, begins with ~ or .., or is there: OWNER/NAME of the hub is told whole, as is a URL. A
    name that would mean the built-in corpus keeps a folder in front of it.
    """
    if "://" in text:
        return text
    if os.path.exists(text) or PureWindowsPath(text).drive:
        return _shortened(text)
    return "".join(_shortened(part) if _is_path(part) else part for part in _BETWEEN_PATHS.split(text))


def _is_path(text: str) -> bool:
    return text.startswith(("/", "\\", "~", "..")) or os.path.exists(text)


def _shortened(text: str) -> str:
    if "/" not in text and "\\" not in text:
        return text
    kind = PureWindowsPath if "\\" in text else PurePosixPath
    name = kind(text).name
    if name in ("", ".."):
        return text
    return f"./{name}" if name == BUILT_IN_CORPUS else name
