"""What every test runs under: one thread, no network, no hub."""

import os
import socket
from collections.abc import Iterator

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is loaded; tests run side by side, one a core
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"

import pytest


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse every connection that leaves this machine."""
    connect = socket.socket.connect

    def connect_here_only(self: socket.socket, address: object) -> None:
        host = address[0] if isinstance(address, tuple) else "local"
        if host not in ("127.0.0.1", "::1", "localhost", "local"):
            raise AssertionError(f"a test tried to reach {host}")
        connect(self, address)  # type: ignore[arg-type]

    monkeypatch.setattr(socket.socket, "connect", connect_here_only)


@pytest.fixture
def nothing_compiled_yet() -> Iterator[None]:
    """torch.compile begins anew, and its counters with it; what is compiled is forgotten afterwards."""
    import torch

    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch.compiler.reset()
