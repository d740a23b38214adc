"""The static page scores text in a browser as onnxruntime does in Python, and contacts only its own
server.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
import pytest
from tokenizers import Tokenizer

from electra_albert import load_model
from electra_albert.hub.onnx import INPUTS, QUANTIZED_FILE
from tests.apps.tiny_run import CHROMIUM, ROOT, SHIPPED

BUILD = [sys.executable, str(ROOT / "examples" / "page" / "build.py"), "--model", str(SHIPPED)]
FLAGS = """--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
--disable-component-update --disable-sync"""
TEXTS = {
    "example": "Open the owl for reading.",
    "digits and accents": "The 1,000 cafés don't open … in 1995 — or do they?",
    "unknown characters and a mask": "He wrote 中文 and ☃ in the [MASK] of the king.",
    "empty": "",
}
# Probabilities in int8. In Python, with and without graph optimisation, they differ by at most
# 0.023 and by 0.0007 on average (63 texts), because activations are rounded to other integers; in
# the browser by 0.021 and 0.0005, and for a model of preset tiny by 0.046 and 0.0002.
LARGEST, MEAN = 0.05, 0.003
QUANTIZATION = 0.1  # int8 and float32 differ by at most 0.094 on 10,824 tokens


class Quiet(SimpleHTTPRequestHandler):
    """Files of a folder, without a log."""

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


class Opened(NamedTuple):
    """The page in a browser."""

    tab: Any
    folder: Path
    requests: list[str]


def run_build(folder: Path, path: str) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, "PATH": path}
    command = [*BUILD, "--output_dir", str(folder)]
    return subprocess.run(command, env=env, capture_output=True, text=True)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("npm") is None or CHROMIUM is None:
        pytest.skip("the page needs npm and Chromium")
    for package in ("onnx", "onnxscript", "onnxruntime", "playwright"):
        pytest.importorskip(package)
    built = run_build(folder := tmp_path_factory.mktemp("page"), os.environ["PATH"])
    if "npm error" in built.stderr:
        pytest.skip(f"npm cannot install the page's packages: {built.stderr[-300:]}")
    assert (built.returncode, built.stderr) == (0, "")
    return folder


@pytest.fixture
def opened(page: Path) -> Iterator[Opened]:
    from playwright.sync_api import sync_playwright

    with (
        ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=page)) as server,
        sync_playwright() as driver,
    ):
        Thread(target=server.serve_forever, daemon=True).start()
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS.split())
        tab = browser.new_page(base_url=f"http://127.0.0.1:{server.server_port}")
        requests = list[str]()
        tab.on("request", lambda request: requests.append(request.url))
        yield Opened(tab, page, requests)
        browser.close()
        server.shutdown()


def read_scores(tab: Any, text: str, token_count: int) -> tuple[list[str], np.ndarray]:
    """Tokens and probabilities that the page shows some time after a text was typed."""
    tab.fill("#text", text)
    tab.wait_for_function(
        "text => document.querySelector('#tokens').dataset.text === text", arg=text
    )
    rows = tab.eval_on_selector_all(
        "#tokens li", "all => all.map(i => [i.dataset.token, i.dataset.probability])"
    )
    assert tab.inner_text("#status").startswith(f"{token_count} tokens in ")
    return [token for token, _ in rows], np.array([float(probability) for _, probability in rows])


def test_scores_are_those_of_onnxruntime_and_no_request_leaves_the_page(opened: Opened) -> None:
    import onnxruntime

    opened.tab.goto("/")
    model, exported = load_model(SHIPPED, "cpu"), opened.folder / "model"
    session = onnxruntime.InferenceSession(
        str(exported / QUANTIZED_FILE), providers=["CPUExecutionProvider"]
    )
    tokenizer = Tokenizer.from_file(str(exported / "tokenizer.json"))
    for text in TEXTS.values():
        encoded = tokenizer.encode(text)
        tokens, found = read_scores(opened.tab, text, len(encoded) - 2)
        values = (encoded.ids, encoded.attention_mask, encoded.type_ids)
        (logits,) = session.run(
            ["logits"], {name: np.array([ids]) for name, ids in zip(INPUTS, values, strict=True)}
        )
        difference = np.abs(found - 1 / (1 + np.exp(-logits[0, 1:-1])))
        assert tokens == encoded.tokens[1:-1]
        assert np.max(difference, initial=0) <= LARGEST
        assert difference.sum() <= MEAN * len(tokens)
        if "[MASK]" not in text:  # which the toolkit reads as text
            scored: Any = model.replaced_probabilities(text)
            assert [each.probability for each in scored] == pytest.approx(
                list(found), abs=QUANTIZATION
            )
    assert {urlsplit(url).hostname for url in opened.requests} == {"127.0.0.1"}


def test_a_text_beyond_the_models_positions_is_cut_with_a_message_and_fits_a_phone(
    opened: Opened,
) -> None:
    opened.tab.set_viewport_size({"width": 390, "height": 800})
    opened.tab.goto("/")
    tokens, _ = read_scores(opened.tab, "the " * 600, 126)
    assert tokens == ["▁the"] * 126
    assert "only its first tokens are scored" in opened.tab.inner_text("#status")
    assert opened.tab.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_missing_file_is_an_error_message(opened: Opened) -> None:
    missing = "model/tokenizer.json"
    opened.tab.route(f"**/{missing}", lambda route: route.fulfill(status=404))
    opened.tab.goto("/")
    opened.tab.wait_for_selector("#status.is-error")
    message = opened.tab.inner_text("#status")
    assert message.startswith("The model could not be loaded")
    assert "tokenizer.json" in message


def test_without_npm_the_build_explains_the_remedy(tmp_path: Path) -> None:
    built = run_build(tmp_path / "page", str(tmp_path))
    assert (built.returncode, built.stderr) == (
        1,
        "npm is not installed; the page needs two packages of its registry: install Node.js\n",
    )
    assert list(tmp_path.iterdir()) == []
