"""Serve a model over HTTP: fill masks, detect replaced tokens, classify, vectors of texts.

    pip install fastapi uvicorn
    python examples/serve.py --model runs/mine --port 8000
    curl localhost:8000/fill-mask --json '{"texts": ["The owl left the [MASK]."]}'

A pair of texts is a list of two. Requests that arrive within a few milliseconds are computed as one
batch. Texts to classify and for vectors are cut at the model's length, other long ones are refused.
A page with all calls is at /docs.
"""

import argparse
import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any, NamedTuple

import uvicorn
from fastapi import FastAPI, HTTPException, Response
from fastapi import Request as HttpRequest
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, Field
from starlette.middleware.base import RequestResponseEndpoint

import electra_albert as ea

MAX_TEXTS = 64  # of a request, and after which a batch is full
MAX_CHARACTERS = 10_000  # of a text
MAX_BYTES = 16_000_000  # of a request: its texts with each character as a \u escape
MAX_WAITING = 500  # requests of a call; the others are answered with 503
SECONDS_TO_WAIT = 0.005  # for more requests of a batch
Text = Annotated[str, Field(max_length=MAX_CHARACTERS)]
TextOrPair = Text | tuple[Text, Text]


class Request(BaseModel):
    """The body of every call."""

    texts: Annotated[list[TextOrPair], Field(min_length=1, max_length=MAX_TEXTS)]


class Waiting(NamedTuple):
    """A request and the future of its results or its error."""

    texts: list[TextOrPair]
    results: asyncio.Future[Any]


class Batches:
    """Joins the requests of one call."""

    def __init__(self, call: Callable[[list[TextOrPair]], list[Any]]) -> None:
        self.call = call
        self.queue: asyncio.Queue[Waiting] = asyncio.Queue()

    async def results(self, request: Request) -> list[Any]:
        """The result of each text; status 400 for one that the model refuses."""
        if self.queue.qsize() >= MAX_WAITING:
            raise HTTPException(503, "too many requests are waiting")
        waiting = Waiting(request.texts, asyncio.get_running_loop().create_future())
        self.queue.put_nowait(waiting)
        try:
            results: list[Any] = await waiting.results
        except ea.UserError as error:
            raise HTTPException(400, str(error).removesuffix(" or give truncate=True")) from None
        return results

    async def run(self, model_lock: asyncio.Lock) -> None:
        """Answer requests without end."""
        while True:
            batch = [await self.queue.get()]
            await asyncio.sleep(SECONDS_TO_WAIT)
            async with model_lock:
                size = len(batch[0].texts)
                while not self.queue.empty() and size < MAX_TEXTS:
                    batch.append(self.queue.get_nowait())
                    size += len(batch[-1].texts)
                answers = await asyncio.to_thread(self._compute, batch)
            for waiting, results in zip(batch, answers, strict=True):
                if waiting.results.cancelled():
                    continue  # the client is gone
                if isinstance(results, Exception):
                    waiting.results.set_exception(results)
                else:
                    waiting.results.set_result(results)

    def _compute(self, batch: Sequence[Waiting]) -> list[Any]:
        """The results of each request, or its error."""
        texts = [text for waiting in batch for text in waiting.texts]
        try:
            results = iter(self.call(texts))
            return [[next(results) for _ in waiting.texts] for waiting in batch]
        except Exception as error:  # the server goes on
            if len(batch) == 1:
                return [error]
            return [self._compute([waiting])[0] for waiting in batch]  # others are without fault


def make_app(model: Any) -> FastAPI:
    """The app with the calls of a model from ea.load_model."""

    def detect(texts: list[TextOrPair]) -> list[Any]:
        scores = model.replaced_probabilities(texts)
        return [[token._asdict() for token in of_text] for of_text in scores]

    def classify(texts: list[TextOrPair]) -> list[Any]:
        return [label._asdict() for label in model.classify(texts, truncate=True)]

    def vectors(texts: list[TextOrPair]) -> list[Any]:
        return [features.pooled.tolist() for features in model.features(texts, truncate=True)]

    calls: dict[str, Callable[[list[TextOrPair]], list[Any]]]
    calls = {"fill-mask": model.fill_mask, "detect": detect}
    calls |= {"classify": classify, "vectors": vectors}
    batches = {name: Batches(call) for name, call in calls.items()}

    @asynccontextmanager
    async def run_batches(_: FastAPI) -> AsyncIterator[None]:
        model_lock = asyncio.Lock()
        tasks = [asyncio.create_task(queue.run(model_lock)) for queue in batches.values()]
        yield
        for task in tasks:
            task.cancel()

    app = FastAPI(title=f"electra-albert: {model.path.name}", lifespan=run_batches)
    for name, queue in batches.items():
        app.post(f"/{name}")(queue.results)

    @app.middleware("http")
    async def limit_body(request: HttpRequest, answer: RequestResponseEndpoint) -> Response:
        length = request.headers.get("content-length", "")
        is_short = length.isdecimal() and int(length) <= MAX_BYTES
        if request.method == "POST" and not is_short:
            return PlainTextResponse(f"needs a Content-Length of at most {MAX_BYTES}", 413)
        return await answer(request)

    @app.exception_handler(RequestValidationError)
    def refuse(_: Any, error: RequestValidationError) -> PlainTextResponse:
        """Without the body, which may be long or hold what JSON cannot."""
        problems = [problem["msg"] for problem in error.errors()[:2]]  # as a text and as a pair
        return PlainTextResponse("; or ".join(problems), 422)

    app.get("/health")(lambda: {"model": str(model.path)})
    return app


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Serve a model over HTTP.")
    parser.add_argument("--model", default="data/models/english-h256-l4")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    try:
        app = make_app(ea.load_model(options.model))
    except ea.UserError as error:
        parser.error(str(error))
    uvicorn.run(app, host=options.host, port=options.port)
