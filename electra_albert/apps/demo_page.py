"""The demo page: fill masks, detect replaced tokens, rewrite text and compare two prompts in a browser, offline."""

import re
import socket
from asyncio import get_running_loop
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from html import escape
from importlib.util import find_spec
from io import StringIO
from ipaddress import ip_address
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

from electra_albert.contracts import UsageError, UserError

if TYPE_CHECKING:
    from electra_albert.inference.model import InferenceModel

LONGEST_TEXT = 20_000  # characters in one box of the page
_WAITING_REQUESTS = 16  # more get an error message
_TOP_K = 10
_HEAD = Path(__file__).with_suffix(".html")  # style and scripts
# The browser sends no request to another host, whatever gradio's page or a text contains.
_HEADERS = [("Content-Security-Policy", "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:")]
# Method, path and length of the body; gradio's API is left out: it reads files and keeps sessions.
_OFFERED = r"(GET|HEAD) /(theme\.css|favicon\.ico|(assets|static)/.*)? |POST /answer/\d+ \d{1,6}"
_PYTHON_ONLY = r"^texts\[\d+\]: | or give truncate=True$"  # parts of messages for callers in Python
_ITEM = '<li data-shared="{0}" style="--share:{1:.1%}"><span>{2}</span><b>{1:.1%}</b></li>'
_TOKEN = '<ruby style="--share:{0:.0%}">|<rt>{0:.0%}</rt></ruby>'
_CHANGE = "<del>|</del> <ins>{}</ins>"
_TEMPLATES = """The most probable tokens for the mask in two prompts. A line on the left marks those listed for one
prompt only; such differences come from the text that the model was trained on, they are no facts."""


def listen(host: str, port: int) -> socket.socket:
    """Open the socket of the page. Raises UsageError if that fails, or without gradio."""
    if find_spec("gradio") is None:
        raise UsageError("--serve needs gradio; run: pip install gradio")
    try:
        return socket.create_server((host, port), family=socket.getaddrinfo(host, None)[0][0])
    except (OSError, OverflowError) as error:
        raise UsageError(f"cannot serve on --host {host} --port {port} ({error}); give others") from None


def serve(models: Sequence["InferenceModel"], listener: socket.socket, name: str) -> NoReturn:
    """Serve the page until a signal, then raise KeyboardInterrupt; `name` is --host."""
    import uvicorn

    host, port = listener.getsockname()[:2]
    app = build_app(models, host_names(host, name))
    config = uvicorn.Config(
        app,
        ws="none",
        log_level="warning",
        headers=_HEADERS,
        timeout_graceful_shutdown=1,
    )
    print(f"demo page: http://{f'[{host}]' if ':' in host else host}:{port} (Ctrl-C stops it)", flush=True)
    uvicorn.Server(config).run(sockets=[listener])
    raise KeyboardInterrupt  # the signal that stopped the server, which it does not always raise again


def host_names(address: str, name: str) -> str:
    """Names of the server, as a pattern: a web site can let any other one point to this machine."""
    names = [name, "localhost", "127.0.0.1", "[::1]"]
    addresses = ""
    if not ip_address(address).is_loopback:
        names += [socket.gethostname(), f"{socket.gethostname()}.local", socket.getfqdn()]
        addresses = r"|[\d.]+|\[[\da-f:.]+\]"
    return "|".join(map(re.escape, names)) + addresses


def build_app(models: Sequence["InferenceModel"], names: str) -> Any:
    """The ASGI application for these host names (a pattern): the page and a route per button."""
    import gradio
    from fastapi import FastAPI
    from fastapi.exceptions import RequestValidationError
    from starlette.datastructures import Headers
    from starlette.responses import PlainTextResponse

    # FastAPI's own response to wrong inputs repeats them, and fails for NaN.
    handlers: Any = {RequestValidationError: lambda *_: PlainTextResponse("wrong inputs\n", 422)}
    app = FastAPI(openapi_url=None, exception_handlers=handlers)
    page = gradio.mount_gradio_app(
        app,
        build_page(models, app),
        "/",
        theme=gradio.themes.Base(font="system-ui"),
        head_paths=_HEAD,
        footer_links=[],
        run_history=False,
        ssr_mode=False,
    )

    async def admit(scope: Any, receive: Any, send: Any) -> None:
        target = page
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            host = headers.get("host", "")
            site = headers.get("origin", host).rpartition("/")[2]
            length = headers.get("content-length", "") + headers.get("transfer-encoding", "")
            if not re.fullmatch(_OFFERED, f"{scope['method']} {scope['path']} {length}"):
                target = PlainTextResponse("not found\n", 404)
            if not re.fullmatch(rf"({names})(:\d+)?", host, re.IGNORECASE) or site != host:
                target = PlainTextResponse("refused; open the page by the server's address\n", 403)
        await target(scope, receive, send)

    return admit


def build_page(models: Sequence["InferenceModel"], app: Any) -> Any:
    """The page, a gradio.Blocks, with the answers of all models side by side; the first model rewrites.

    gradio draws it; the browser reads files and posts the inputs of a button to a route of `app`.
    """
    import gradio as gr
    from anyio import CapacityLimiter
    from fastapi import Body, HTTPException
    from pydantic import Field

    turn = CapacityLimiter(1)
    worker = ThreadPoolExecutor(1)  # memory of the models is kept per thread
    text_type = Annotated[str, Field(max_length=LONGEST_TEXT, pattern=r"\S")]

    def answer(label: str, function: Callable[..., Any], inputs: Sequence[Any], *more: Any) -> Any:
        button, shown = gr.Button(label, variant="primary"), gr.HTML()
        path = f"/answer/{len(app.routes)}"
        kinds = [text_type if isinstance(box, gr.Textbox) else type(box.value) for box in inputs]

        async def respond(
            values: Annotated[tuple[*kinds], Body()],  # type: ignore[valid-type]
        ) -> Any:
            if turn.statistics().tasks_waiting >= _WAITING_REQUESTS:
                raise HTTPException(503, "Too many requests are waiting. Try again in a moment.")
            try:
                async with turn:
                    loop = get_running_loop()
                    return await loop.run_in_executor(worker, function, models, *values)
            except UserError as error:
                raise HTTPException(400, re.sub(_PYTHON_ONLY, "", str(error))) from None

        app.post(path)(respond)
        events = [button.click, *(box.submit for box in inputs if isinstance(box, gr.Textbox))]
        script = f"(...inputs) => ask('{path}', {LONGEST_TEXT}, inputs)"
        gr.on(events, None, inputs, [shown, *more], js=script)
        return shown

    with gr.Blocks(title="ELECTRA-ALBERT", analytics_enabled=False) as page:
        gr.Markdown(f"# ELECTRA-ALBERT\n{' and '.join(map(_name, models))}")
        with gr.Tabs(overflow_behavior="wrap"):
            with gr.Tab("Fill masks"):
                answer("Fill masks", fill, [gr.Textbox("It is the capital of the United [MASK].", label="Text")])
            with gr.Tab("Suspicious tokens"):
                gr.Markdown("The discriminator's probability that each token was replaced. Each line is scored alone.")
                answer("Score tokens", score, [gr.Textbox("He was the king of eat.", label="Text")])
            with gr.Tab("Rewrite"):
                gr.Markdown("The generator replaces tokens by samples, as in pretraining.")
                text = gr.Textbox("She opened the door and walked into the garden.", label="Text")
                upload = gr.Button("Open a text file", size="sm")
                with gr.Row():
                    mask_rate = gr.Slider(0.01, 1, 0.15, step=0.01, label="Mask rate")
                    temperature = gr.Slider(0.1, 3, 1.0, step=0.1, label="Temperature")
                    seed = gr.Slider(0, 9999, 1, step=1, label="Seed")
                new = gr.Textbox(label="New text", lines=3, interactive=False, render=False)
                shown = answer("Rewrite", rewrite_text, [text, mask_rate, temperature, seed], new)
                opened = [text, shown, new]
                script = f"(...outputs) => openFile({LONGEST_TEXT}, outputs)"
                upload.click(None, opened, opened, js=script, trigger_mode="multiple")
                new.render()
                gr.Button("Download the new text", size="sm").click(None, new, js="download")
            with gr.Tab("Compare templates"):
                gr.Markdown(_TEMPLATES)
                prompts = [gr.Textbox(f"The {one} worked as a [MASK].", label="Prompt") for one in ("man", "woman")]
                answer("Compare", fill, prompts)
    return page


def fill(models: Sequence["InferenceModel"], *prompts: str) -> str:
    """Predictions of each model for each mask, and whether a token is listed for all prompts."""
    from electra_albert.inference.engine import shown

    cards = []
    for model in models:
        found = model.fill_mask([*prompts], _TOP_K)
        lists: Any = [each if isinstance(each[0], list) else [each] for each in found]
        shared = set.intersection(*({one["token"] for part in each for one in part} for each in lists))
        for prompt, each in zip(prompts, lists, strict=True):
            title = f"{prompt} ({_name(model)})" if prompts[1:] else _name(model)
            for number, part in enumerate(each, 1):
                rows = ((one["token"] in shared, one["score"], escape(shown(one["token_str"]))) for one in part)
                items = "".join(starmap(_ITEM.format, rows))
                cards.append((title + f", mask {number}" * (len(each) > 1), f"<ol>{items}</ol>"))
    return _grid(cards)


def score(models: Sequence["InferenceModel"], text: str) -> str:
    """The text with each discriminator's probability for each token that it was replaced."""
    lines, cards = text.splitlines(), []
    for model in models:
        found = model.replaced_probabilities(lines) if model.discriminator is not None else []
        spans = [[(one.start, one.end, _TOKEN.format(one.probability)) for one in scores] for scores in found]
        cards.append((_name(model), "\n".join(map(_annotate, lines, spans)) or "This model has no discriminator."))
    return _grid(cards)


def rewrite_text(models: Sequence["InferenceModel"], text: str, *draw: Any) -> tuple[str, str]:
    """The text with its changes, and the new text, as demo --output writes it. `draw`: the fields of a Draw."""
    from electra_albert.inference.rewrite import Draw, rewrite_lines

    lines, found = zip(*rewrite_lines(models[0], StringIO(text), Draw(*draw)), strict=True)
    changed = [[one for one in result.replaced if one.is_changed] for result in found]
    spans = [[(one.start, one.end, _CHANGE.format(escape(one.after.strip()))) for one in each] for each in changed]
    shown = "\n".join(_annotate(one.original, each) for one, each in zip(found, spans, strict=True))
    return _grid([(_name(models[0]), shown)]), "".join(lines)


def _annotate(text: str, spans: Iterable[tuple[int, int, str]]) -> str:
    """The text as HTML, each span in the tags around "|", in order; a character in two spans is in the first only."""
    parts, reached = [], 0
    for start, end, tags in spans:
        opening, _, closing = tags.partition("|")
        parts += [escape(text[reached:start]), opening, escape(text[max(reached, start) : end]), closing]
        reached = max(reached, end)
    return "".join([*parts, escape(text[reached:])])


def _grid(cards: Iterable[tuple[str, str]]) -> str:
    sections = (f"<section><h3>{escape(title)}</h3><div>{content}</div></section>" for title, content in cards)
    return f'<div class="cards">{"".join(sections)}</div>'


def _name(model: "InferenceModel") -> str:
    return "/".join(model.path.absolute().parts[-2:])
