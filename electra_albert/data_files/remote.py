"""Files elsewhere, fetched once into a cache: URLs of all file systems that fsspec knows, and datasets of the hub."""

import hashlib
import logging
import re
import shutil
from pathlib import Path
from typing import Any

from electra_albert.contracts import UsageError

LOG = logging.getLogger(__name__)

_HUB_SECONDS = 3  # to wait for an answer of the hub
_WEB_SECONDS = 60  # to wait for the next bytes of a file


def is_url(name: str) -> bool:
    """Whether a name is a URL, of any scheme: https://…, s3://bucket/…, hf://datasets/…."""
    return re.match(r"[a-z][a-z0-9+.-]*://", name, re.IGNORECASE) is not None


def fetch(url: str, option: str) -> list[Path]:
    """Local copies of the file, the folder, or the files of a pattern with a star at `url`, in order.

    A copy is used again until its server gives another size, time or tag; it is also used where none is reached.
    """
    import aiohttp
    import fsspec
    from huggingface_hub.constants import HF_HOME

    # Proxies of the environment, and a limit on each wait where aiohttp's own is one of five minutes on the whole.
    waits = aiohttp.ClientTimeout(total=None, sock_connect=_WEB_SECONDS, sock_read=_WEB_SECONDS)
    options = {"client_kwargs": {"trust_env": True, "timeout": waits}} if url.lower().startswith("http") else {}
    cache = Path(HF_HOME) / "electra-albert"
    try:
        system, path = fsspec.url_to_fs(url, **options)
        names = sorted(system.glob(path)) if "*" in path else [path]
        copies = [_copy(system, name, cache / _digest(system.protocol, name)) for name in names]
    except UsageError:
        raise
    except Exception as error:  # every file system raises the errors of a library of its own
        reason = " ".join(str(error.__cause__ or error).split())[:200] or type(error).__name__
        raise UsageError(f"--{option} {url}: cannot be fetched ({reason}); check the URL and the network") from error
    if not copies:
        raise UsageError(f"--{option} {url}: no file matches it; check the URL")
    return copies


def _copy(system: Any, name: str, kept: Path) -> Path:
    """The copy of a file or folder below `kept`, in a folder for each state of it."""
    from filelock import FileLock

    try:  # not the cache of fsspec: to it the files of web servers never change, and none is there without a network
        state = system.info(name)
        if is_folder := state["type"] == "directory":
            state = system.find(name, detail=True)
    except OSError as error:
        copies = sorted(kept.glob("*/*"), key=lambda copy: copy.stat().st_mtime_ns)
        reason = error.__cause__ or error  # a web server that is not reached is FileNotFoundError too
        if not copies or isinstance(reason, FileNotFoundError):
            raise
        LOG.warning(f"{name}: not reached ({' '.join(str(reason).split())[:100]}); reading the copy fetched before")
        return copies[-1]
    last = re.split(r"[?#]", name)[0].rstrip("/").rpartition("/")[2]
    if last in ("", ".", "..") or (is_folder and any(".." in Path(entry).parts for entry in state)):
        raise UsageError(f"{name}: not the name of a file; give its URL in full")
    copy = kept / _digest(sorted(state.items(), key=str)) / last
    kept.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{kept}.lock"):
        if not copy.exists():
            LOG.info(f"fetching {name}")
            part = kept / "part"
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            if is_folder:
                system.get(name, str(part / last), recursive=True)
            else:
                system.get_file(name, str(part / last))
            part.rename(copy.parent)
    return copy


def _digest(*content: object) -> str:
    return hashlib.blake2b(repr(content).encode(), digest_size=8).hexdigest()


def load_from_hub(name: str, config: str | None, split: str | None, what: str) -> Any:
    """A dataset, or one split of it, from the hub or the cache; `what` begins the message where there is none."""
    import datasets

    settings = datasets.config
    was_offline = settings.HF_HUB_OFFLINE
    try:
        # Without a network the library tries again for half a minute; set offline, it looks into its cache.
        settings.HF_HUB_OFFLINE = was_offline or not (Path(name).exists() or _answers(settings.HF_ENDPOINT))
        return datasets.load_dataset(name, config, split=split)  # RuntimeError where that needs a script
    except (datasets.exceptions.DatasetsError, OSError, ValueError, RuntimeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        if settings.HF_HUB_OFFLINE and not was_offline:
            reason = f"no answer from {settings.HF_ENDPOINT}, and it is not in the cache"
        raise UsageError(f"{what} ({reason[:300]}); check the name, the network, and that you may use it") from error
    finally:
        settings.HF_HUB_OFFLINE = was_offline


def _answers(url: str) -> bool:
    """Whether a server answers in time, even with a refusal, through the environment's proxy if it names one."""
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    try:
        urlopen(Request(url, method="HEAD"), timeout=_HUB_SECONDS)
    except (OSError, ValueError) as error:  # a server with a bad certificate did answer
        return isinstance(error, HTTPError) or "certificate" in str(error).lower()
    return True
