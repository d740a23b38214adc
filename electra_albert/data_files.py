"""What reading a corpus and reading the tables of a task share: datasets on the hub."""

from __future__ import annotations

import os
import re
from threading import Thread
from typing import Any

from electra_albert.contracts import UsageError

_HUB_NAME = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?::(?P<config>[\w.-]+))?")
_HUB_SECONDS = 3  # to wait for an answer of the hub


def hub_name(text: str) -> tuple[str, str | None] | None:
    """The dataset and its config that OWNER/NAME or OWNER/NAME:CONFIG names; None for any other text."""
    match = _HUB_NAME.fullmatch(text)
    return match and (match["name"], match["config"])


def load_from_hub(name: str, config: str | None, split: str | None, what: str) -> Any:
    """A dataset, downloaded or from the cache, or one split of it; `what` begins the message where there is none.

    Raises UsageError where it cannot be had: no network, no such dataset or config, no access.
    """
    import datasets

    was_offline = datasets.config.HF_HUB_OFFLINE
    is_local = os.path.exists(name)
    try:
        # Without a network the library tries again for half a minute; told that it is offline, it looks into its cache.
        datasets.config.HF_HUB_OFFLINE = was_offline or not (is_local or _answers(datasets.config.HF_ENDPOINT))
        return datasets.load_dataset(name, config, split=split)  # RuntimeError where that needs a script
    except (datasets.exceptions.DatasetsError, OSError, ValueError, RuntimeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        if datasets.config.HF_HUB_OFFLINE and not was_offline:
            reason = f"no answer from {datasets.config.HF_ENDPOINT}, and it is not in the cache"
        way_out = "check the name, the network, and that you may use it"
        raise UsageError(f"{what} ({reason[:300]}); {way_out}") from error
    finally:
        datasets.config.HF_HUB_OFFLINE = was_offline


def _answers(url: str) -> bool:
    """Whether a server answers in time, be it with a refusal; through a proxy where the environment names one."""
    import ssl
    import urllib.error
    import urllib.request

    answers: list[bool] = []

    def ask() -> None:
        try:
            urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=_HUB_SECONDS).close()
        except urllib.error.HTTPError:
            pass
        except OSError as error:
            if not isinstance(getattr(error, "reason", None), ssl.SSLError):
                return
        answers.append(True)

    asking = Thread(target=ask, daemon=True)  # which is left where the look-up of the name does not end
    asking.start()
    asking.join(_HUB_SECONDS)
    return bool(answers)
