"""The example that serves a model: joined requests, refused ones, limits."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

import electra_albert as ea
from tests.apps.tiny_run import ROOT, SHIPPED

GOOD = ["The owl left the [MASK].", "A [MASK] fell into the river."]
TOO_LONG = "owl " * 200


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import serve as example

    return example


@pytest.fixture
def client(serve: Any) -> Iterator[TestClient]:
    with TestClient(serve.make_app(ea.load_model(SHIPPED))) as client:
        yield client


def test_every_call_answers_as_python(client: TestClient) -> None:
    model = ea.load_model(SHIPPED)
    texts = [*GOOD, ("An owl.", "A river.")]  # text and pair

    def answer(call: str, texts: Any) -> Any:
        return client.post(f"/{call}", json={"texts": texts}).json()

    assert answer("fill-mask", GOOD) == model.fill_mask(GOOD)
    assert answer("detect", texts) == [
        [token._asdict() for token in tokens] for tokens in model.replaced_probabilities(texts)
    ]
    assert answer("vectors", texts) == [found.pooled.tolist() for found in model.features(texts)]
    assert client.get("/health").json() == {"model": str(SHIPPED)}


def test_requests_are_joined_and_a_wrong_one_fails_alone(serve: Any) -> None:
    calls = []

    def lengths(texts: list[str]) -> list[int]:
        calls.append(len(texts))
        if "wrong" in texts:
            raise ea.DataError("wrong text")
        return list(map(len, texts))

    async def ask() -> list[Any]:
        batches = serve.Batches(lengths)
        task = asyncio.create_task(batches.run(asyncio.Lock()))
        sent = [["a"], ["bb", "ccc"], ["wrong"], ["dddd"]]
        requests = [batches.results(serve.Request(texts=texts)) for texts in sent]
        answers = await asyncio.gather(*requests[:2])
        answers += await asyncio.gather(*requests[2:], return_exceptions=True)
        task.cancel()
        return answers

    first, second, refused, third = asyncio.run(ask())
    assert (first, second, third) == ([1], [2, 3], [4])
    assert (refused.status_code, refused.detail) == (400, "wrong text")
    assert calls == [3, 2, 1, 1]


REFUSED = {
    "no texts": ("detect", [], 422),
    "too many texts": ("detect", ["a"] * 65, 422),
    "too many characters": ("detect", ["a" * 10_001], 422),
    "three texts for a pair": ("detect", [["a", "b", "c"]], 422),
    "too many tokens": ("detect", [TOO_LONG], 400),
    "a pair to fill": ("fill-mask", [["a", "[MASK]"]], 400),
    "a call that the model lacks": ("classify", ["a"], 400),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_request_is_refused_and_the_server_goes_on(name: str, client: TestClient) -> None:
    call, texts, status = REFUSED[name]
    answer = client.post(f"/{call}", json={"texts": texts})
    assert answer.status_code == status
    assert "truncate" not in answer.text
    assert client.post("/detect", json={"texts": ["a"]}).status_code == 200


def test_long_bodies_and_too_many_requests_are_refused(
    serve: Any, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: a body of any size was read, and idle connections counted as requests."""
    assert client.post("/detect", content=" " * (serve.MAX_BYTES + 1)).status_code == 413
    chunks = iter([b"{", b"}"])  # sent without a length
    assert client.post("/detect", content=chunks).status_code == 413
    monkeypatch.setattr(serve, "MAX_WAITING", 0)
    assert client.post("/detect", json={"texts": ["a"]}).status_code == 503


@pytest.mark.parametrize("body", ['{"texts": [NaN]}', r'{"texts": ["\ud800"]}', "{"])
def test_a_body_that_json_cannot_repeat_is_refused(body: str, client: TestClient) -> None:
    # Regression: status 500, because the answer repeated the body.
    assert client.post("/detect", content=body).status_code == 422
