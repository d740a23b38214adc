"""The log in dev/log has an entry for every removed option, and every link to it names an entry."""

import re

from electra_albert.config.pretraining import REMOVED
from tests.budgets import ROOT

LOG = ROOT / "dev" / "log" / "2026-11.md"
PAGES = [
    path for glob in ("*.md", "docs/*.md", "benchmarks/*.md") for path in sorted(ROOT.glob(glob))
]


def anchors(text: str) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def missing_entries(page: str, log: str) -> list[str]:
    links = re.findall(rf"{LOG.name}#([\w-]+)", page)
    return [link for link in links if link not in anchors(log)]


def test_every_removed_option_is_in_the_log() -> None:
    log = LOG.read_text(encoding="utf-8")
    assert [name for name in REMOVED if f"`--{name}`" not in log] == []


def test_every_link_to_the_log_names_an_entry() -> None:
    log = LOG.read_text(encoding="utf-8")
    pages = {path.name: missing_entries(path.read_text(encoding="utf-8"), log) for path in PAGES}
    assert {name: links for name, links in pages.items() if links} == {}
    assert missing_entries("](#gone) and (2026-11.md#no-entry)", log) == ["no-entry"]
    inner = re.findall(r"\]\(#([\w-]+)\)", log)
    assert [link for link in inner if link not in anchors(log)] == []
