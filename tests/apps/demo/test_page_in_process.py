"""The demo page without a browser: no state, no tags from texts, its end and its refusals."""

import gc
import re
import socket
import sys
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest
from starlette.testclient import TestClient

from electra_albert.apps import demo
from electra_albert.apps.demo_page import (
    build_app,
    fill,
    listen,
    rewrite_text,
    score,
    serve,
)
from electra_albert.inference.model import load_model
from tests.apps.tiny_run import ROOT, assert_refused, call

SHIPPED = ROOT / "data" / "models" / "english-h256-l4"
TAGS = {"section", "h3", "div", "ol", "li", "span", "b", "ruby", "rt", "del", "ins"}


def test_nothing_is_kept_of_a_request() -> None:
    counts = []
    with TestClient(build_app([load_model(SHIPPED, "cpu")], "testserver")) as client:
        for _ in range(5):
            assert {client.post("/answer/1", json=["He"]).status_code for _ in range(20)} == {200}
            gc.collect()
            counts.append(len(gc.get_objects()))
    growth = [later - former for former, later in pairwise(counts)]
    assert median(growth) < 10, growth  # less than one object per request


def test_no_text_becomes_a_tag_of_the_page() -> None:
    models, text = [load_model(SHIPPED, "cpu")], "<q> <img src=x> & <q>"
    shown = (
        fill(models, f"{text} [MASK]"),
        score(models, text),
        rewrite_text(models, text, 0.9, 3.0, 1)[0],
    )
    # The prompt is not in the answer for a single one.
    for html, count in zip(shown, (0, 3, 3), strict=True):
        assert {*re.findall(r"<(\w+)", html)} <= TAGS
        assert html.count("&lt;") >= count


def test_a_server_that_swallows_the_signal_ends_as_an_interrupt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("uvicorn.Server.run", lambda *_, **__: None)
    with listen("127.0.0.1", 0) as listener, pytest.raises(KeyboardInterrupt):
        serve([load_model(SHIPPED)], listener, "127.0.0.1")


def test_the_page_is_refused_before_a_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as used:
        for argv, words in (
            (("--serve", "--port", used.getsockname()[1]), ("--port", "in use")),
            (("--serve", "--port", 70_000), ("--port 70000",)),
            (("--serve", "--host", "no.such.host.invalid"), ("--host",)),
            (("--serve", "--json"), ("--json", "with --serve")),
            (("--serve", "--output", tmp_path / "out.txt"), ("--output", "with --serve")),
            (("--serve", "--seed", 3), ("--seed", "with --serve")),
            (("--compare", tmp_path), ("--compare", "without --serve")),
            (("--port", 1), ("--port", "without --serve")),
        ):
            assert_refused(call(demo.main, "--gen", tmp_path / "gone", *argv), 2, *words)
    monkeypatch.setitem(sys.modules, "gradio", None)  # not installed
    assert_refused(call(demo.main, "--serve", "--gen", tmp_path / "gone"), 2, "pip install gradio")
