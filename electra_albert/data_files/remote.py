"""Remote files, downloaded once into a cache: URLs of any fsspec file system, and hub datasets."""

import hashlib
import re
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from filelock import FileLock

from electra_albert.contracts import LOG, UsageError, one_line
from electra_albert.files import new_folder, remove_leftovers

URL = "://"  # in a URL of any scheme: https://…, s3://bucket/…, hf://datasets/…
_HUB_SECONDS = 3  # timeout for a response of the hub
_WEB_SECONDS = 60  # timeout for the next bytes of a file
# Names, in all file systems, of the entries of a file's status that change with its content.
_IDENTITY = re.compile(r"(?i)size|sum|tag|digest|modif|mtime|md5|crc|sha|creat|updat|version|blob")


def fetch(url: str, option: str) -> list[Path]:
    """Local copies of the file, the folder or the files matching a glob at `url`, in order.

    A copy is reused until the server reports another size, time or tag, and also if the server
    cannot be reached.
    """
    import aiohttp
    import fsspec
    from huggingface_hub.constants import HF_HOME

    options = {}
    if url.lower().startswith("http"):
        # Proxies of the environment; a timeout per read, not aiohttp's five minutes for a file.
        waits = aiohttp.ClientTimeout(total=None, sock_connect=_WEB_SECONDS, sock_read=_WEB_SECONDS)
        options = {"client_kwargs": {"trust_env": True, "timeout": waits}}
    try:
        system, path = fsspec.url_to_fs(url, **options)
        system.invalidate_cache()
        names = [path]
        if "*" in path:
            names = sorted(system.glob(path))
        copies = []
        for name in names:
            folder = Path(HF_HOME, "electra-albert", _digest(system.protocol, name))
            copies.append(_copy(system, name, folder))
    except UsageError:
        raise
    except Exception as error:  # every file system raises errors of its own library
        reason = one_line(error.__cause__ or error)
        raise UsageError(
            f"--{option} {url}: cannot be downloaded ({reason}); check the URL and the network"
        ) from error
    if not copies:
        raise UsageError(f"--{option} {url}: no file matches it; check the URL")
    return copies


def _copy(system: Any, name: str, folder: Path) -> Path:
    """Copy a file or folder into `folder`, by its remote version; OSError if it is not whole."""
    try:  # fsspec's own cache assumes that web files never change and needs a network
        version = _version(system, name)
    except OSError as error:
        copies = sorted(folder.glob("[!.]*/*"), key=lambda copy: copy.stat().st_mtime_ns)
        cause = error.__cause__ or error  # an unreachable web server raises FileNotFoundError too
        if not copies or isinstance(cause, FileNotFoundError):
            raise
        LOG.warning(f"{name}: not reachable ({one_line(cause)}); using the copy downloaded before")
        return copies[-1]
    is_folder = name not in version
    url_path = re.split(r"[?#]", name)[0].rstrip("/")
    last = url_path.rpartition("/")[2]
    leaves_folder = is_folder and any(".." in Path(path).parts for path in version)
    if leaves_folder or last in ("", ".", ".."):
        raise UsageError(f"{name}: not a file name; give the full URL")
    copy = folder / _digest(version) / last
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not copy.exists():
            LOG.info(f"downloading {name}")
            remove_leftovers(folder)
            with new_folder(copy.parent) as part:
                if is_folder:
                    system.get(name, str(part / last), recursive=True)
                else:
                    system.get_file(name, str(part / last))
                _require_whole(part, version)
                system.invalidate_cache()
                if _version(system, name) != version:
                    raise OSError("it changed during the download")
    return copy


def _version(system: Any, name: str) -> dict[str, dict[str, Any]]:
    """Size, time and tags of the file, or of each file in the folder, by path."""
    status = system.info(name)
    files = {name: status}
    if status["type"] == "directory":
        files = system.find(name, detail=True)
    version = {}
    for path, status in sorted(files.items()):
        version[path] = {key: status[key] for key in sorted(status) if _IDENTITY.search(key)}
    return version


def _require_whole(folder: Path, version: dict[str, dict[str, Any]]) -> None:
    """Raise OSError unless files have the announced sizes; some servers announce none, or 0."""
    announced = [status["size"] for status in version.values() if status.get("size")]
    received = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    if Counter(announced) - Counter(received):
        raise OSError(f"{sum(received):,} bytes were received, but {sum(announced):,} announced")


def _digest(*content: object) -> str:
    return hashlib.blake2b(repr(content).encode(), digest_size=8).hexdigest()


def load_from_hub(
    name: str, config: str | None, split: str | None, what: str, *, streaming: bool = False
) -> Any:
    """A dataset, or one split of it, from a folder, the hub or the cache.

    An error message starts with `what`.
    """
    import datasets

    settings = datasets.config
    was_offline = settings.HF_HUB_OFFLINE
    is_offline = was_offline or not (Path(name).exists() or _answers(settings.HF_ENDPOINT))
    # Without a network `datasets` retries for half a minute; in offline mode it uses its cache.
    settings.HF_HUB_OFFLINE = is_offline
    try:
        return datasets.load_dataset(name, config, split=split, streaming=streaming)
    # A RuntimeError: of a script.
    except (datasets.exceptions.DatasetsError, OSError, ValueError, RuntimeError) as error:
        reason = one_line(error)
        if is_offline and not was_offline:
            reason = f"no response from {settings.HF_ENDPOINT}, and not in the cache"
        raise UsageError(
            f"{what} ({reason}); check the name, the network and your access"
        ) from error
    finally:
        settings.HF_HUB_OFFLINE = was_offline


def _answers(url: str) -> bool:
    """Whether a server responds in time, even with an error; uses the proxy of the environment."""
    try:
        urlopen(Request(url, method="HEAD"), timeout=_HUB_SECONDS)
    except (OSError, ValueError) as error:  # a server with a bad certificate did respond
        return isinstance(error, HTTPError) or "certificate" in str(error).lower()
    return True
