"""Uploads to the Hugging Face hub (--push_to_hub), with the token of `hf auth login` or HF_TOKEN."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # that of its HTTP client

from electra_albert.contracts import UsageError

LOG = logging.getLogger(__name__)
RUN_PARTS = ("README.md", "metrics.jsonl", "generator/*", "discriminator/*", "tokenizer/*")


def create_repository(name: str, *, is_private: bool = False) -> None:
    """Create the model repository OWNER/NAME unless it exists. Raises UsageError if the hub refuses or is not reached.

    Called before the training, so that a missing login is known early.
    """
    with _one_line_errors(name, "check name, login (hf auth login) and network"):
        HfApi().create_repo(name, private=is_private or None, exist_ok=True)
        is_public = is_private and not HfApi().repo_info(name).private
    if is_public:
        raise UsageError(f"--push_to_hub {name} exists and is public; make it private, or give another name")


def upload(folder: Path, name: str, message: str, parts: Sequence[str] = (), revision: str | None = None) -> None:
    """Upload a folder, or the files in it that match `parts`, in one commit. Raises UsageError as create_repository.

    A `revision` is a branch of the repository; it is created if necessary.
    """
    with _one_line_errors(name, f"{folder} is complete: upload it by the same command again"):
        if revision is not None:
            HfApi().create_branch(name, branch=revision, exist_ok=True)
        options: dict[str, Any] = {"commit_message": message, "allow_patterns": [*parts] or None, "revision": revision}
        done = HfApi().upload_folder(repo_id=name, folder_path=folder, **options)
    LOG.info(f"uploaded {folder} to {done.repo_url}")


@contextmanager
def _one_line_errors(name: str, advice: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, RuntimeError, HTTPError) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UsageError(f"--push_to_hub {name}: {reason}; {advice}") from error
