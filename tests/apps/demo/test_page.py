"""The demo page in headless Chromium: answers of the Python interface, limits, and no request to
another machine.
"""

import json
import re
import shutil
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from electra_albert.apps import demo
from electra_albert.apps.demo_page import LONGEST_TEXT, host_names
from electra_albert.inference.model import load_model
from tests.apps.tiny_run import CHROMIUM, ROOT, SHIPPED, call, start

TEXT = "He was the king of <b>eat</b>.\n\n  & the sea "
# Runs the command; any connection that this process makes, and any name that it resolves, is
# printed.
SERVER = """
import sys
from electra_albert.cli import run
def audit(event, given):
    peer = "127.0.0.1"
    if event == "socket.connect":
        peer = given[1][0]
    elif event == "socket.getaddrinfo":
        peer = given[0]
    if peer != "127.0.0.1":
        print("network:", event, given, file=sys.stderr, flush=True)
sys.addaudithook(audit)
sys.exit(run(sys.argv[1:]))
"""
LIMIT = f"A text needs 1 to {LONGEST_TEXT:,} characters"
OPTIONS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-sync"
)

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on PATH")


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A generator with other predictions, without a discriminator."""
    folder = shutil.copytree(SHIPPED / "generator", tmp_path_factory.mktemp("models") / "second")
    weights = load_file(folder / "model.safetensors")
    weights["predictions.bias"] = weights["predictions.bias"].flip(0)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def address(second: Path) -> Iterator[str]:
    """The address of a server with two models, which makes no connection and stops at Ctrl-C."""
    words = ["demo", "--serve", "--port", 0, "--gen", SHIPPED, "--compare", second]
    process = start(["-c", SERVER, *words], ROOT)
    printed = process.stdout.readline()
    yield printed.split()[2] if printed else pytest.fail(process.stderr.read())
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    notice = "notice: no discriminator with a detection head, so tokens are not scored"
    assert (process.returncode, out, err) == (130, "", f"{notice}\ninterrupted\n")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS.split())


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    """A page at the width of a phone. None of its requests leaves this machine."""
    with browser.new_context(viewport={"width": 390, "height": 800}) as context:
        opened, urls = context.new_page(), list[str]()
        opened.set_default_timeout(20_000)
        opened.on("request", lambda request: urls.append(request.url))
        opened.goto(address)
        yield opened
        assert len(urls) > 1
        allowed = (f"{address}/", "data:", f"blob:{address}/")
        assert [url for url in urls if not url.startswith(allowed)] == []


def ask(address: str, path: str, inputs: str | None = None, **headers: str) -> int:
    """Status of the response, to a POST if there are inputs, as JSON."""
    connection = HTTPConnection(address.removeprefix("http://"), timeout=30)
    headers["Content-Type"] = "application/json"
    connection.request("POST" if inputs else "GET", path, inputs, headers)
    return connection.getresponse().status


def press(page: Any, tab: str, button: str, *texts: str) -> Any:
    """Write into the text boxes of a tab and press its button."""
    page.get_by_role("tab", name=tab).click()
    for box, text in zip(page.locator("textarea:visible").all(), texts, strict=False):
        box.fill(text)
        page.wait_for_timeout(200)  # a component that has just been loaded may not have noticed it
        box.fill(text)
    page.get_by_role("button", name=button, exact=True).click()


def open_file(page: Any, path: Path) -> None:
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Open a text file").click()
    chooser.value.set_files(path)


def cards(page: Any) -> list[Any]:
    """The results in the open tab, one for each model and mask."""
    page.locator("section:visible").first.wait_for()
    return list(page.locator("section:visible").all())


def predictions(card: Any) -> list[tuple[str, str]]:
    return [tuple(item.inner_text().split("\n")) for item in card.locator("li").all()]


def expected(model: Path, text: str) -> list[tuple[str, str]]:
    tops: Any = load_model(model, "cpu").fill_mask(text, top_k=10)
    return [(top["token_str"], f"{top['score']:.1%}") for top in tops]


@needs_browser
def test_masks_are_filled_as_in_python_by_two_models_side_by_side(page: Any, second: Path) -> None:
    page.set_viewport_size({"width": 1000, "height": 800})
    press(page, "Fill masks", "Fill masks", text := "It is the capital of the United [MASK].")
    left, right = cards(page)
    assert predictions(left) == expected(SHIPPED, text)
    assert predictions(right) == expected(second, text) != predictions(left)
    assert left.bounding_box()["y"] == right.bounding_box()["y"]


@needs_browser
def test_each_token_has_the_discriminators_probability_and_the_text_is_unchanged(page: Any) -> None:
    press(page, "Suspicious tokens", "Score tokens", TEXT)
    first, second = cards(page)
    lines: Any = load_model(SHIPPED, "cpu").replaced_probabilities(TEXT.split("\n"))
    wanted = [f"{token.probability:.0%}" for token in chain(*lines)]
    assert first.locator("rt").all_inner_texts() == wanted
    script = "it => [...it.querySelectorAll('rt')].map(each => each.remove()) && it.textContent"
    assert first.locator("div").evaluate(script) == TEXT
    assert "no discriminator" in second.inner_text()


@needs_browser
def test_an_uploaded_file_is_rewritten_and_downloaded_as_by_the_command(
    page: Any, tmp_path: Path
) -> None:
    (source := tmp_path / "source.txt").write_text(TEXT, encoding="utf-8")
    words = (source, "--output", tmp_path / "new.txt", "--seed", 1)
    assert call(demo.main, "--gen", SHIPPED, *words).code == 0
    page.get_by_role("tab", name="Rewrite").click()
    open_file(page, source)
    script = "text => [...document.querySelectorAll('textarea')].some(it => it.value == text)"
    page.wait_for_function(script, arg=TEXT)
    press(page, "Rewrite", "Rewrite")
    (card,) = cards(page)
    with page.expect_download() as download:
        page.get_by_role("button", name="Download").click()
    wanted = (tmp_path / "new.txt").read_text(encoding="utf-8")
    assert Path(download.value.path()).read_text(encoding="utf-8") == wanted != TEXT
    deleted, inserted = (card.locator(tag).all_inner_texts() for tag in ("del", "ins"))
    assert len(deleted) == len(inserted) > 0
    assert all(old in TEXT and new in wanted for old, new in zip(deleted, inserted, strict=True))


TEXTS_REFUSED = {
    "x" * (LONGEST_TEXT + 1): f"{LIMIT}, this one has {LONGEST_TEXT + 1:,}.",
    "<img src=x> no mask": "'<img src=x> no mask' has no [MASK]; replace a word by [MASK]",
    "[MASK] " * 600: " is 602 tokens long, the maximum is 128; shorten it",
    " ": f"{LIMIT}, this one has 1.",
}


@needs_browser
def test_a_text_that_cannot_be_read_is_refused_with_a_message(page: Any) -> None:
    for text, message in TEXTS_REFUSED.items():
        press(page, "Fill masks", "Fill masks", "A [MASK].")
        cards(page)
        press(page, "Fill masks", "Fill masks", text)
        page.get_by_role("alert").filter(has_text=message).wait_for()
        assert page.locator("section:visible, img[src=x]").count() == 0  # nor the former answer


@needs_browser
def test_a_file_that_the_page_cannot_read_leaves_no_answer(page: Any, tmp_path: Path) -> None:
    press(page, "Rewrite", "Rewrite")
    cards(page)
    too_long = b"a" * (4 * LONGEST_TEXT + 1)
    for content, message in ((b"caf\xe9", "not UTF-8"), (too_long, "too large")):
        (tmp_path / "source.txt").write_bytes(content)
        open_file(page, tmp_path / "source.txt")
        page.get_by_role("alert").filter(has_text=message).wait_for()
        assert page.locator("section:visible").count() == 0
        assert page.get_by_label("New text").input_value() == ""


@needs_browser
def test_enter_sends_the_text_of_every_tab_and_a_phone_shows_all_of_it(page: Any) -> None:
    for tab in ("Suspicious", "Rewrite", "Compare", "Fill"):
        page.get_by_role("tab", name=tab).click()
        box = page.locator("textarea:visible").first
        box.press("Shift+Enter")
        assert "\n" in box.input_value()
        box.press("Enter")
        cards(page)
        assert page.evaluate("document.documentElement.scrollWidth") == 390


@needs_browser
def test_the_browser_refuses_requests_of_the_page_to_another_server(page: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        url = f"http://127.0.0.1:{other.getsockname()[1]}"
        script = """url => new Promise(done => {
            document.onsecuritypolicyviolation = event => done(event.blockedURI)
            fetch(url)
            setTimeout(() => done("sent"), 3000) })"""
        assert page.evaluate(script, url).startswith(url)


def test_a_path_in_a_request_is_refused(address: str) -> None:
    file = json.dumps({"path": __file__, "meta": {"_type": "gradio.FileData"}})
    for number in range(12):
        call = f'{{"data": [{file}], "fn_index": {number}, "session_hash": "s"}}'
        for route in ("queue/join", "run/predict", "call/predict", "component_server", "upload"):
            assert ask(address, f"/gradio_api/{route}", call) == 404
        for inputs in (file, f"[{file}]", f"[{file}, {file}]", f"[{file}, 0.5, 1, 1]"):
            assert ask(address, f"/answer/{number}", inputs) in (404, 422)
    for path in ("static/", "assets/" + "../" * 20):
        assert ask(address, f"/{path}{__file__}") in (403, 404)
    for path in (f"file={__file__}", "info", "queue/data?session_hash=s"):
        assert ask(address, f"/gradio_api/{path}") == 404
    assert ask(address, "/static/" + 999 * "a") == 404  # gradio alone answers 500


def test_requests_of_other_sites_are_refused(address: str) -> None:
    local = address.replace("127.0.0.1", "localhost")
    evil = "http://localhost.evil.example"
    for host, site, status in (
        (address, address, 200),
        (local, local, 200),
        (address, local, 403),
        (address, evil, 403),
        (address, "null", 403),
        (evil, evil, 403),
        ("http://192.0.2.1", "http://192.0.2.1", 403),
    ):
        headers = {"Host": host.removeprefix("http://"), "Origin": site}
        assert ask(address, "/answer/0", '["A [MASK]."]', **headers) == status, headers
        assert ask(address, "/", **headers) == status, headers


def test_a_page_for_other_machines_has_their_names_for_this_one() -> None:
    names = ["demo.test", "localhost", socket.gethostname(), "192.0.2.1", "[2001:db8::1]"]
    others = ["evil.example", "demo-test", "demo.test.evil.example", "192.0.2.1.evil.example"]
    pattern = re.compile(host_names("0.0.0.0", "demo.test"))
    assert [*filter(pattern.fullmatch, names + others)] == names


NESTED = "[" * 99_999
LONG = json.dumps(["a\n" * LONGEST_TEXT])
MALFORMED = r"""
["a", [0.5], 1, 1]
["a", NaN, 1, 1]
["a", 0.5, 1, 1.5]
[NaN]
[1]
["\ud800 [MASK]"]
["\ud800 a", 1, 1, 1]
[" "]
[]
null
"""


def test_malformed_requests_leave_no_traceback(address: str) -> None:
    """A traceback would be on stderr, which `address` compares."""
    for inputs in (NESTED, LONG, *MALFORMED.strip().splitlines()):
        for number in range(4):
            assert ask(address, f"/answer/{number}", inputs) in (400, 422)
    assert ask(address, "/answer/0", " " * 1_000_000) == 404
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as client:  # leaves before the answer
        client.sendall(b"POST /answer/0 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n")


def test_some_requests_wait_and_more_are_refused(address: str) -> None:
    text = json.dumps(["He was the king of eat. " * 14])
    with ThreadPoolExecutor(40) as pool:
        assert {*pool.map(lambda _: ask(address, "/answer/1", text), range(40))} == {200, 503}
