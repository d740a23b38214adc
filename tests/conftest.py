"""Environment of all tests: one thread, no network, no hub."""

import os
import socket
from collections.abc import Iterator

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported; tests run in parallel, one per core
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"

import pytest


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse every connection to another machine."""
    connect = socket.socket.connect

    def connect_here_only(self: socket.socket, address: object) -> None:
        host = address[0] if isinstance(address, tuple) else "local"
        if host not in ("127.0.0.1", "::1", "localhost", "local"):
            raise AssertionError(f"a test tried to reach {host}")
        connect(self, address)  # type: ignore[arg-type]

    monkeypatch.setattr(socket.socket, "connect", connect_here_only)


@pytest.fixture
def nothing_compiled_yet() -> Iterator[None]:
    """Reset torch.compile and its counters before the test, and torch.compile after it."""
    import torch

    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch.compiler.reset()
