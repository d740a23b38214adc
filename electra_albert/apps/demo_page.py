"""The demo page: fill masks, detect replaced tokens, rewrite text and compare two prompts in a browser, offline."""

import socket
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from html import escape
from importlib.util import find_spec
from io import StringIO
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from electra_albert.contracts import DataError, UsageError, UserError

if TYPE_CHECKING:
    from electra_albert.inference.model import InferenceModel, MaskPrediction

LONGEST_TEXT = 20_000  # characters in one box of the page
_WAITING_REQUESTS = 16  # more get an error message
_TOP_K = 10
_CSS = Path(__file__).with_suffix(".css")
# The browser sends no request to another host, whatever gradio's page or a text contains.
_HEADERS = [("Content-Security-Policy", "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:")]
_DOWNLOAD = """text => Object.assign(document.createElement("a"),
    {href: URL.createObjectURL(new Blob([text])), download: "rewritten.txt"}).click()"""
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


def serve(models: Sequence["InferenceModel"], listener: socket.socket) -> NoReturn:
    """Serve the page until a signal, then raise KeyboardInterrupt."""
    import fastapi
    import gradio
    import uvicorn

    options: dict[str, Any] = {"theme": gradio.themes.Base(font="system-ui"), "css_paths": _CSS, "footer_links": []}
    options |= {"run_history": False, "ssr_mode": False, "max_file_size": 4 * LONGEST_TEXT}
    app = gradio.mount_gradio_app(fastapi.FastAPI(openapi_url=None), build_page(models), "/", **options)
    config = uvicorn.Config(app, log_level="warning", headers=_HEADERS, timeout_graceful_shutdown=1)
    host, port = listener.getsockname()[:2]
    print(f"demo page: http://{f'[{host}]' if ':' in host else host}:{port} (Ctrl-C stops it)", flush=True)
    uvicorn.Server(config).run(sockets=[listener])
    raise KeyboardInterrupt  # the signal that stopped the server, which it does not always raise again


def build_page(models: Sequence["InferenceModel"]) -> Any:
    """The page, a gradio.Blocks, with the answers of all models side by side; the first model rewrites."""
    import gradio as gr

    def answer(label: str, function: Callable[..., Any], inputs: Sequence[Any], *more: Any) -> None:
        button, shown = gr.Button(label, variant="primary"), gr.HTML()
        limits: dict[str, Any] = {"concurrency_id": "models", "concurrency_limit": 1, "api_visibility": "private"}
        button.click(_checked(partial(function, models)), inputs, [shown, *more], **limits)

    with gr.Blocks(title="ELECTRA-ALBERT", analytics_enabled=False, delete_cache=(600, 600)) as page:
        gr.Markdown(f"# ELECTRA-ALBERT\n{' and '.join(map(_name, models))}")
        with gr.Tabs(overflow_behavior="wrap"):
            with gr.Tab("Fill masks"):
                answer("Fill masks", fill, [gr.Textbox("It is the capital of the United [MASK].", label="Text")])
            with gr.Tab("Suspicious tokens"):
                gr.Markdown("The discriminator's probability that each token was replaced. Each line is scored alone.")
                answer("Score tokens", score, [gr.Textbox("He was the king of eat.", label="Text", lines=2)])
            with gr.Tab("Rewrite"):
                gr.Markdown("The generator replaces tokens by samples, as in pretraining.")
                text = gr.Textbox("She opened the door and walked into the garden.", label="Text", lines=3)
                upload = gr.UploadButton("Open a text file", size="sm", type="binary")
                upload.upload(_checked(partial(str, encoding="utf-8-sig")), upload, text, api_visibility="private")
                with gr.Row():
                    mask_rate = gr.Slider(0.01, 1, 0.15, step=0.01, label="Mask rate")
                    temperature = gr.Slider(0.1, 3, 1, step=0.1, label="Temperature")
                    seed = gr.Slider(0, 9999, 1, step=1, label="Seed")
                new = gr.Textbox(label="New text", lines=3, interactive=False, render=False)
                answer("Rewrite", rewrite_text, [text, mask_rate, temperature, seed], new)
                new.render()
                gr.Button("Download the new text", size="sm").click(None, new, js=_DOWNLOAD)
            with gr.Tab("Compare templates"):
                gr.Markdown(_TEMPLATES)
                prompts = [gr.Textbox(f"The {one} worked as a [MASK].", label="Prompt") for one in ("man", "woman")]
                answer("Compare", fill, prompts)
    return page.queue(max_size=_WAITING_REQUESTS, api_open=False)


def fill(models: Sequence["InferenceModel"], *prompts: str) -> str:
    """Predictions of each model for each mask, and whether a token is listed for all prompts."""
    from electra_albert.inference.engine import shown

    cards = []
    for model in models:
        found = model.fill_mask([*prompts], _TOP_K)
        lists: list[list[list[MaskPrediction]]] = [each if isinstance(each[0], list) else [each] for each in found]
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
    """The text with its changes, and the new text, as `LM_DEMO.py --output` writes it. `draw`: the fields of a Draw."""
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


def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """A callback that refuses blank and long texts; the message of a UserError appears on the page."""

    def call(*inputs: Any) -> Any:
        import gradio

        try:
            inputs = tuple("" if each is None else each for each in inputs)  # a cleared box
            for text in (each for each in inputs if isinstance(each, str)):
                if not text.strip() or len(text) > LONGEST_TEXT:
                    raise DataError(f"a text needs 1 to {LONGEST_TEXT:,} characters, this one has {len(text):,}")
            return function(*inputs)
        except (UserError, UnicodeDecodeError) as error:
            raise gradio.Error(escape(str(error)), print_exception=False) from None

    return call
