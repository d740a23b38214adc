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

from electra_albert.apps import demo, demo_page
from electra_albert.apps.demo_page import build_app, fill, listen, rewrite_text, score, serve
from electra_albert.inference.model import load_model
from tests.apps.tiny_run import SHIPPED, assert_refused, call
from tests.refusals import rows

TAGS = {"section", "h3", "div", "ol", "li", "span", "b", "ruby", "rt", "del", "ins"}


def test_nothing_is_kept_of_a_request() -> None:
    counts = []
    with TestClient(build_app([load_model(SHIPPED, "cpu")], "testserver")) as client:
        for _ in range(5):
            assert {client.post("/answer/1", json=["He"]).status_code for _ in range(8)} == {200}
            gc.collect()
            counts.append(len(gc.get_objects()))
    growth = [later - former for former, later in pairwise(counts)]
    assert median(growth) < 4, growth  # less than one object per request


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


def test_no_predicted_token_becomes_a_tag_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_page, "shown", "<img>{}".format)
    html = fill([load_model(SHIPPED, "cpu")], "It is [MASK].")
    assert "&lt;img&gt;" in html
    assert {*re.findall(r"<(\w+)", html)} <= TAGS


def test_tokens_listed_for_one_prompt_only_are_marked() -> None:
    prompts = ("The man worked as a [MASK].", "The woman worked as a [MASK].")
    sections = fill([load_model(SHIPPED, "cpu")], *prompts).split("</section>")[:2]
    listed = [{*re.findall("<span>(.*?)<", html)} for html in sections]
    for html, others in zip(sections, listed[::-1], strict=True):
        for is_shared, token in re.findall('data-shared="(.*?)".*?<span>(.*?)<', html):
            assert (is_shared == "True") == (token in others)
    assert listed[0] != listed[1]


def test_a_server_that_swallows_the_signal_ends_as_an_interrupt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("uvicorn.Server.run", lambda *_, **__: None)
    with listen("127.0.0.1", 0) as listener, pytest.raises(KeyboardInterrupt):
        serve([load_model(SHIPPED)], listener, "127.0.0.1")


REFUSED = """
--serve --port 70000    | 70000
--serve --host a.invalid | a.invalid
--serve --host 127.0..1  | 127.0..1
--serve --output a.txt  | with --serve
--serve --seed 3        | with --serve
--compare a             | without --serve
--port 1                | without --serve
"""


def test_the_page_is_refused_before_a_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as used:
        in_use = f"--serve --port {used.getsockname()[1]} | in use"
        for words, reason in rows(REFUSED + in_use):
            argv = ("--gen", tmp_path / "gone", *words.split())
            assert_refused(call(demo.main, *argv), 2, reason, words.split()[-2])
    monkeypatch.setitem(sys.modules, "gradio", None)  # not installed
    assert_refused(call(demo.main, "--serve", "--gen", tmp_path / "gone"), 2, "pip install gradio")
