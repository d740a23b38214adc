"""The demo page: fill masks, detect replaced tokens, rewrite text and compare prompts, offline."""

import re
import socket
from asyncio import get_running_loop
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from html import escape
from importlib.util import find_spec
from io import StringIO
from ipaddress import ip_address
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, NoReturn

from electra_albert.contracts import UsageError, UserError
from electra_albert.inference.engine import shown
from electra_albert.inference.model import InferenceModel
from electra_albert.inference.rewrite import Draw, rewrite_lines

LONGEST_TEXT = 20_000  # characters in one box of the page
_WAITING_REQUESTS = 16  # more get an error message
_TOP_K = 10
_HEAD = Path(__file__).with_suffix(".html")  # style and scripts
# The browser sends no request to another host, whatever gradio's page or a text contains.
_POLICY = "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:"
_HEADERS = [("Content-Security-Policy", _POLICY)]
# Method, path and length of the body, without gradio's API: it reads files and keeps sessions.
_OFFERED = (
    r"(GET|HEAD) /(theme\.css|favicon\.ico|(assets|static)/[!-~]{,99})? |POST /answer/\d+ \d{1,6}"
)
_PYTHON_ONLY = r"^texts\[\d+\]: | or give truncate=True$"  # parts of messages for callers in Python
_ITEM = '<li data-shared="{0}" style="--share:{1:.1%}"><span>{2}</span><b>{1:.1%}</b></li>'
_TOKEN = '<ruby style="--share:{0:.0%}">|<rt>{0:.0%}</rt></ruby>'
_CHANGE = "<del>|</del> <ins>{}</ins>"
_SCORES = """The discriminator's probability that each token was replaced. Each line is scored
alone."""
_TEMPLATES = """The most probable tokens for the mask in two prompts. A line on the left marks those
listed for one prompt only; such differences come from the text that the model was trained on, they
are no facts."""


def listen(host: str, port: int) -> socket.socket:
    """Open the socket of the page. Raises UsageError if that fails, or without gradio."""
    if find_spec("gradio") is None:
        raise UsageError("--serve needs gradio; run: pip install gradio")
    try:
        family, *_ = socket.getaddrinfo(host, None)[0]
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError, UnicodeError) as error:
        raise UsageError(
            f"cannot serve on --host {host} --port {port} ({error}); give others"
        ) from None


def serve(models: Sequence[InferenceModel], listener: socket.socket, name: str) -> NoReturn:
    """Serve the page until a signal, then raise KeyboardInterrupt; `name` is --host."""
    import uvicorn

    host, port = listener.getsockname()[:2]
    app = build_app(models, host_names(host, name))
    config = uvicorn.Config(
        app, ws="none", log_level="warning", headers=_HEADERS, timeout_graceful_shutdown=1
    )
    if ":" in host:
        host = f"[{host}]"
    print(f"demo page: http://{host}:{port} (Ctrl-C stops it)", flush=True)
    uvicorn.Server(config).run(sockets=[listener])
    raise KeyboardInterrupt  # the signal that stopped the server, which may not raise it again


def host_names(address: str, name: str) -> str:
    """Names of the server, as a pattern: a web site can let any other one point to this machine."""
    names = [name, "localhost", "127.0.0.1", "[::1]"]
    addresses = ""
    if not ip_address(address).is_loopback:
        names += [socket.gethostname(), f"{socket.gethostname()}.local", socket.getfqdn()]
        addresses = r"|[\d.]+|\[[\da-f:.]+\]"
    return "|".join(map(re.escape, names)) + addresses


def build_app(models: Sequence[InferenceModel], names: str) -> Any:
    """The ASGI application for host names (a pattern): the page and a route per button."""
    import gradio
    from fastapi import FastAPI
    from fastapi.exceptions import RequestValidationError
    from starlette.datastructures import Headers
    from starlette.responses import PlainTextResponse

    # FastAPI's own response to wrong inputs repeats them, and fails for NaN.
    handlers: Any = {RequestValidationError: lambda *_: PlainTextResponse("wrong inputs\n", 422)}
    app = FastAPI(openapi_url=None, exception_handlers=handlers)
    theme = gradio.themes.Base(font="system-ui")
    page = gradio.mount_gradio_app(
        app,
        build_page(models, app),
        "/",
        theme=theme,
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
            is_named = re.fullmatch(rf"({names})(:\d+)?", host, re.IGNORECASE)
            if not is_named or site != host:
                target = PlainTextResponse("refused; open the page by the server's address\n", 403)
        await target(scope, receive, send)

    return admit


def build_page(models: Sequence[InferenceModel], app: Any) -> Any:
    """The page, a gradio.Blocks, with the answers of all models; the first model rewrites.

    gradio draws it; the browser reads files and posts the inputs of a button to a route of `app`.
    """
    import gradio as gr

    answer = _answers(models, app)
    with gr.Blocks(title="ELECTRA-ALBERT", analytics_enabled=False) as page:
        gr.Markdown(f"# ELECTRA-ALBERT\n{' and '.join(map(_name, models))}")
        with gr.Tabs(overflow_behavior="wrap"):
            with gr.Tab("Fill masks"):
                text = gr.Textbox("It is the capital of the United [MASK].", label="Text")
                answer("Fill masks", fill, [text])
            with gr.Tab("Suspicious tokens"):
                gr.Markdown(_SCORES)
                text = gr.Textbox("He was the king of eat.", label="Text")
                answer("Score tokens", score, [text])
            with gr.Tab("Rewrite"):
                gr.Markdown("The generator replaces tokens by samples, as in pretraining.")
                text = gr.Textbox("She opened the door and walked into the garden.", label="Text")
                upload = gr.Button("Open a text file", size="sm")
                with gr.Row():
                    mask_rate = gr.Slider(0.01, 1, 0.15, step=0.01, label="Mask rate")
                    temperature = gr.Slider(0.1, 3, 1.0, step=0.1, label="Temperature")
                    seed = gr.Slider(0, 9999, 1, step=1, label="Seed")
                new = gr.Textbox(label="New text", lines=3, interactive=False, render=False)
                html = answer("Rewrite", rewrite_text, [text, mask_rate, temperature, seed], new)
                opened = [text, html, new]
                script = f"(...outputs) => openFile({LONGEST_TEXT}, outputs)"
                upload.click(None, opened, opened, js=script, trigger_mode="multiple")
                new.render()
                download = gr.Button("Download the new text", size="sm")
                download.click(None, new, js="download")
            with gr.Tab("Compare templates"):
                gr.Markdown(_TEMPLATES)
                first = gr.Textbox("The man worked as a [MASK].", label="Prompt")
                second = gr.Textbox("The woman worked as a [MASK].", label="Prompt")
                answer("Compare", fill, [first, second])
    return page


def _answers(models: Sequence[InferenceModel], app: Any) -> Callable[..., Any]:
    """A function that draws a button and its answer, which a route of `app` computes."""
    import gradio as gr
    from anyio import CapacityLimiter
    from fastapi import Body, HTTPException
    from pydantic import Field

    turn = CapacityLimiter(1)
    worker = ThreadPoolExecutor(1)  # memory of the models is kept per thread
    text_type = Annotated[str, Field(max_length=LONGEST_TEXT, pattern=r"\S")]

    def answer(label: str, function: Callable[..., Any], inputs: Sequence[Any], *more: Any) -> Any:
        button = gr.Button(label, variant="primary")
        html = gr.HTML()
        path = f"/answer/{len(app.routes)}"
        events = [button.click]
        kinds = []
        for box in inputs:
            if isinstance(box, gr.Textbox):
                events.append(box.submit)
                kinds.append(text_type)
            else:
                kinds.append(type(box.value))

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
        script = f"(...inputs) => ask('{path}', {LONGEST_TEXT}, inputs)"
        gr.on(events, None, inputs, [html, *more], js=script)
        return html

    return answer


def fill(models: Sequence[InferenceModel], *prompts: str) -> str:
    """Predictions of each model for each mask, and whether a token is listed for all prompts."""
    cards = []
    for model in models:
        answers: list[Any] = []  # a list per mask for each prompt
        tokens = []
        for answer in model.fill_mask([*prompts], _TOP_K):
            columns = answer if isinstance(answer[0], list) else [answer]
            answers.append(columns)
            tokens.append({top["token"] for top in chain(*columns)})
        shared = set.intersection(*tokens)
        for prompt, columns in zip(prompts, answers, strict=True):
            title = _name(model)
            if len(prompts) > 1:
                title = f"{prompt} ({title})"
            for number, column in enumerate(columns, 1):
                items = ""
                for top in column:
                    name = escape(shown(top["token_str"]))
                    items += _ITEM.format(top["token"] in shared, top["score"], name)
                mask = f", mask {number}" if len(columns) > 1 else ""
                cards.append((f"{title}{mask}", f"<ol>{items}</ol>"))
    return _grid(cards)


def score(models: Sequence[InferenceModel], text: str) -> str:
    """The text with each discriminator's probability for each token that it was replaced."""
    lines = text.splitlines()
    cards = []
    for model in models:
        content = "This model has no discriminator."
        if model.discriminator:
            marked = []
            for line, scores in zip(lines, model.replaced_probabilities(lines), strict=True):
                spans = [(token, _TOKEN.format(token.probability)) for token in scores]
                marked.append(_annotate(line, spans))
            content = "\n".join(marked)
        cards.append((_name(model), content))
    return _grid(cards)


def rewrite_text(models: Sequence[InferenceModel], text: str, *draw: Any) -> tuple[str, str]:
    """The text with its changes, and the new text, as demo --output writes it.

    `draw`: the fields of a Draw.
    """
    new = ""
    marked = []
    for line, result in rewrite_lines(models[0], StringIO(text), Draw(*draw)):
        new += line
        spans = []
        for change in result.replaced:
            if change.is_changed:
                after = escape(change.after.strip())
                spans.append((change, _CHANGE.format(after)))
        marked.append(_annotate(result.original, spans))
    return _grid([(_name(models[0]), "\n".join(marked))]), new


def _annotate(text: str, spans: Iterable[tuple[Any, str]]) -> str:
    """The text as HTML, each span in its tags; a character in two spans is in the first only.

    "a cat sat", [(span from 2 to 5, "<b>|</b>")]  ->  "a <b>cat</b> sat"
    """
    html = ""
    reached = 0
    for span, tags in spans:
        html += escape(text[reached : span.start])
        start = max(reached, span.start)
        html += tags.replace("|", escape(text[start : span.end]), 1)
        reached = max(reached, span.end)
    return html + escape(text[reached:])


def _grid(cards: Iterable[tuple[str, str]]) -> str:
    html = ""
    for title, content in cards:
        html += f"<section><h3>{escape(title)}</h3><div>{content}</div></section>"
    return f'<div class="cards">{html}</div>'


def _name(model: InferenceModel) -> str:
    return "/".join(model.path.absolute().parts[-2:])
