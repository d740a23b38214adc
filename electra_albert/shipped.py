"""Files that ship with the toolkit: below data/ in a checkout, inside the package where it is installed."""

from __future__ import annotations

from pathlib import Path

_INSTALLED = Path(__file__).parent / "data"
SHIPPED = _INSTALLED if _INSTALLED.is_dir() else Path(__file__).parents[1] / "data"
SAMPLE_TEXT = SHIPPED / "sample" / "simple-wikipedia.txt.xz"
SAMPLE_TASK = SHIPPED / "topics"
MODELS = SHIPPED / "models"
