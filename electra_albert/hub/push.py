"""Uploads to the Hugging Face hub (--push_to_hub), with the token of `hf auth login` or HF_TOKEN."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from electra_albert.contracts import UsageError

LOG = logging.getLogger(__name__)

RUN_PARTS = ("README.md", "config.yaml", "metrics.jsonl", "generator/*", "discriminator/*", "tokenizer/*")


def create_repository(name: str, *, is_private: bool = False) -> None:
    """Create the model repository OWNER/NAME unless it exists. Raises UsageError if the hub refuses or is not reached.

    Called before the training, so that a missing login is known early.
    """
    from huggingface_hub import HfApi

    with _one_line_errors(name):
        HfApi().create_repo(name, private=is_private or None, exist_ok=True)


def upload(folder: Path, name: str, message: str, parts: Sequence[str] | None = None) -> None:
    """Upload a folder, or the files in it that match `parts`, in one commit. Raises UsageError as create_repository."""
    from huggingface_hub import HfApi

    with _one_line_errors(name):
        done = HfApi().upload_folder(
            repo_id=name, folder_path=folder, commit_message=message, allow_patterns=[*parts] if parts else None
        )
    LOG.info(f"uploaded {folder} to {done.repo_url}")


@contextmanager
def _one_line_errors(name: str) -> Iterator[None]:
    from huggingface_hub import errors

    try:
        yield
    except (OSError, ValueError, errors.HTTPError) as error:  # type: ignore[attr-defined]  # that of its HTTP client
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UsageError(f"--push_to_hub {name}: {reason}; check name, login (hf auth login) and network") from error
