"""The log in dev/log has an entry for every removed option, and every link to it names an entry."""

import re

from electra_albert.config.pretraining import REMOVED
from tests.budgets import ROOT

LOGS = {path.name: path.read_text(encoding="utf-8") for path in ROOT.glob("dev/log/*.md")}
PAGES = [
    path
    for glob in ("*.md", "docs/*.md", "benchmarks/*.md", "dev/log/*.md")
    for path in sorted(ROOT.glob(glob))
]


def anchors(text: str) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def missing_entries(page: str, name: str = "") -> list[str]:
    """Links to entries that no log has; those without a file are to the log of this `name`."""
    links = re.findall(r"(20\d\d-\d\d\.md)#([\w-]+)", page)
    links += [(name, link) for link in re.findall(r"\]\(#([\w-]+)\)", page) if name]
    return [link for log, link in links if link not in anchors(LOGS.get(log, ""))]


def test_every_removed_option_is_in_the_log() -> None:
    log = "".join(LOGS.values())
    assert [name for name in REMOVED if f"`--{name}`" not in log] == []


def test_every_link_to_the_log_names_an_entry() -> None:
    pages = {
        path.name: missing_entries(
            path.read_text(encoding="utf-8"), path.name if path.name in LOGS else ""
        )
        for path in PAGES
    }
    assert {name: links for name, links in pages.items() if links} == {}
    assert missing_entries("](#gone) and (2026-11.md#no-entry)") == ["no-entry"]
    assert missing_entries("](#gone)", "2026-11.md") == ["gone"]
