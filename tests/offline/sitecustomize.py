"""Refuse connections to other machines: Python imports a module of this name at its start, found
through PYTHONPATH.
"""

import sys

HERE = ("127.0.0.1", "::1", "localhost")


def refuse(event: str, arguments: tuple[object, ...]) -> None:
    """Audit hook: raise for an address of another machine."""
    if (
        event in ("socket.connect", "socket.sendto")
        and isinstance(arguments[1], tuple)
        and arguments[1][0] not in HERE
    ):
        raise AssertionError(f"a test tried to reach {arguments[1][0]}")


sys.addaudithook(refuse)
