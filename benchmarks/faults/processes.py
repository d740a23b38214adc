"""Commands of the checkout with faults, in fresh processes or forked from one that has done its
imports.

Needs Linux and a C compiler: preload.c is compiled, and loaded into every process. Run as a module,
this file is the server that forks: a process for each line of JSON on stdin, whose id it prints.
"""

import ctypes
import gc
import importlib
import json
import os
import pkgutil
import resource
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import electra_albert

ROOT = Path(__file__).parents[2]
LIMIT_SECONDS = 120
_LIMIT_BYTES = 8 << 30  # of address space, to protect the machine
_SCRIPTS = ("Pretraining.py", "Finetuning.py", "LM_DEMO.py")
_PR_SET_CHILD_SUBREAPER = 36
_SLOW_IMPORTS = """torch._dynamo torch.utils.tensorboard jsonargparse docstring_parser
sklearn.metrics datasets scipy.stats transformers.convert_slow_tokenizer tokenizers.trainers
transformers.models.albert.modeling_albert transformers.models.electra.modeling_electra"""


class Ended(NamedTuple):
    """The end of a process."""

    code: (
        int | None
    )  # exit code, negative for a signal; None if the process was killed after its time limit
    out: str
    err: str
    seconds: float
    peak_bytes: int
    has_fault: bool  # whether the fault was reached


class Process(NamedTuple):
    """A running command, which leads its own process group."""

    pid: int
    output: Path  # without the suffixes .out and .err
    started: float

    @property
    def has_ended(self) -> bool:
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def wait(self, limit: float = LIMIT_SECONDS) -> Ended:
        """Wait for the end; after `limit` seconds from its start, kill the process."""
        is_late = False
        while not (found := os.wait4(self.pid, os.WNOHANG))[0]:
            if is_late := time.monotonic() - self.started > limit:
                for pid in (
                    self.pid,
                    *self.children(),
                ):  # the ranks of torchrun are not in its process group
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)  # processes that it has left running
        code = None if is_late and os.WIFSIGNALED(found[1]) else os.waitstatus_to_exitcode(found[1])
        out, err = (
            self.output.with_suffix(suffix).read_text(errors="replace")
            for suffix in (".out", ".err")
        )
        seconds, has_fault = (
            time.monotonic() - self.started,
            self.output.with_suffix(".hit").exists(),
        )
        return Ended(code, out, err, seconds, found[2].ru_maxrss << 10, has_fault)

    def children(self) -> list[int]:
        """Processes that this one has started, in order: the ranks of torchrun."""
        return [
            int(word)
            for word in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        ]

    def await_stop(self, of_child: bool = False) -> bool:
        """Wait until the process, or its child, has stopped itself; returns False if it ends
        before.
        """
        while not self.has_ended and time.monotonic() - self.started < LIMIT_SECONDS:
            for pid in self.children() if of_child else [self.pid]:
                with suppress(FileNotFoundError):  # it has ended
                    if Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] == "T":
                        return True
            time.sleep(0.005)
        return False


class Launcher:
    """Starts commands in working folders; `folder` is for their output."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._count, library, pipe = folder, 0, folder / "preload.so", subprocess.PIPE
        source = Path(__file__).with_name("preload.c")
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
        fixed = {
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": str(ROOT),
            "LD_PRELOAD": str(library),
        }
        self._environment = {**os.environ, **fixed}
        server = [sys.executable, "-m", "benchmarks.faults.processes"]
        self._server = subprocess.Popen(
            server, env=self._environment, stdin=pipe, stdout=pipe, text=True
        )
        ctypes.CDLL(None).prctl(
            _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0
        )  # to become the parent of what the server forks
        signal.signal(
            signal.SIGINT, signal.default_int_handler
        )  # a background job ignores it, and so do its children

    def start(
        self,
        argv: Sequence[str],
        folder: Path,
        fault: str = "",
        *,
        is_fresh: bool = False,
        **more: str,
    ) -> Process:
        """Start a script of the checkout, or -m module, with its arguments; `fault` and `more` are
        for preload.c.
        """
        self._count += 1
        output, started = self._folder / f"{self._count:05d}", time.monotonic()
        more = {"root": str(folder), "hit": f"{output}.hit", **more}
        faults = {f"FAULT_{name.upper()}": value for name, value in more.items()}
        faults |= {"FAULT": fault} if fault else {}
        words = [str(ROOT / word) if word in _SCRIPTS else word for word in argv]
        if is_fresh:
            with (
                output.with_suffix(".out").open("w") as out,
                output.with_suffix(".err").open("w") as err,
            ):
                streams: dict[str, Any] = {
                    "stdin": subprocess.DEVNULL,
                    "stdout": out,
                    "stderr": err,
                }
                environment = self._environment | faults
                command = [sys.executable, *words]
                child = subprocess.Popen(
                    command, cwd=folder, env=environment, start_new_session=True, **streams
                )
            child.returncode = 0  # it is waited for by its id
            return Process(child.pid, output, started)
        request = {
            "argv": words,
            "folder": str(folder),
            "output": str(output),
            "environment": faults,
        }
        output.with_suffix(".err").touch()  # may be read before the new process opens it
        stdin: Any = self._server.stdin
        stdout: Any = self._server.stdout
        print(json.dumps(request), file=stdin, flush=True)
        return Process(int(stdout.readline()), output, started)


def _become(request: dict[str, Any]) -> None:
    """Run the command of a request in this process."""
    os.setsid()
    os.chdir(request["folder"])
    paths = (os.devnull, request["output"] + ".out", request["output"] + ".err")
    for descriptor, path in enumerate(paths):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), descriptor)
    resource.setrlimit(resource.RLIMIT_AS, (_LIMIT_BYTES, _LIMIT_BYTES))
    os.environ.update(request["environment"])
    ctypes.CDLL(None).fault_start()
    sys.argv = request["argv"]
    if sys.argv[0] == "-m":
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")


def _serve() -> None:
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping

    modules = [
        module.name for module in pkgutil.walk_packages(electra_albert.__path__, "electra_albert.")
    ]
    for name in (*_SLOW_IMPORTS.split(), *modules):
        if not name.endswith("__main__"):
            importlib.import_module(name)
    get_checkpoint_conversion_mapping("albert")  # cached: the first call takes .2 seconds
    gc.collect()
    gc.freeze()  # or the first collection of each process copies all memory
    read, write = os.pipe()
    for line in sys.stdin:
        if (child := os.fork()) == 0:
            if (grandchild := os.fork()) == 0:
                _become(json.loads(line))
                return
            os.write(write, str(grandchild).encode())
            os._exit(0)
        os.waitpid(child, 0)  # now the launcher is the parent of the grandchild
        print(os.read(read, 20).decode(), flush=True)


if __name__ == "__main__":
    _serve()
