"""Documents of a datatrove pipeline to a corpus: after its filters, each task writes one part."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock

from electra_albert.config.training import TrainingConfig
from electra_albert.contracts import DataError, UsageError
from electra_albert.corpus.documents import Decoder, Record, counted, documents_of_records
from electra_albert.corpus.parts import PartPlan, write_documents
from electra_albert.corpus.sources import ReadOptions, Unit
from electra_albert.files import load_json, write_json
from electra_albert.tokenization.text_encoder import TextEncoder
from electra_albert.tokenization.tokenizer import (
    Tokenizer,
    fingerprint,
    load_tokenizer,
    save_tokenizer,
)

MAX_TASKS = 4096  # a store maps ten files of each part into memory, of 65,530 that Linux allows
DOCUMENTS_FILE = "token_parts.json"  # in a folder of parts that a pipeline has written
_RECORD = {"tasks": int, "seed": int, "tokenizer": str, "key": str | None}


@dataclass(frozen=True)
class WriteTokens:
    """The last step of a datatrove pipeline: task `rank` tokenises its documents into part `rank`.

    `folder` is then a corpus for --corpus, with a copy of `tokenizer` in it. The number of tasks
    must stay the same.
    """

    folder: str
    tokenizer: str
    seed: int = TrainingConfig.seed  # of the held-out text

    def __call__(self, data: Iterable[Any], rank: int = 0, world_size: int = 1) -> None:
        """data: datatrove's documents. Raises UsageError if other tasks have other settings."""
        folder = Path(self.folder)
        if world_size > MAX_TASKS:
            raise UsageError(
                f"{world_size:,} tasks, more than {MAX_TASKS:,}; give the last step fewer"
            )
        (folder / "store" / "parts").mkdir(parents=True, exist_ok=True)
        tokenizer = load_tokenizer(Path(self.tokenizer))
        key = fingerprint(tokenizer)
        settings = {"tasks": world_size, "seed": self.seed, "tokenizer": key}
        with FileLock(folder / ".lock"):
            if not (folder / DOCUMENTS_FILE).exists():  # the first task
                save_tokenizer(tokenizer, folder / "tokenizer", 512)
                write_json(folder / DOCUMENTS_FILE, settings)
            record = read_record(folder)
        if record.get("key"):
            raise UsageError(f"{folder} is complete and in use; remove it or name another folder")
        if record != settings:
            raise UsageError(
                f"{folder} was begun with other settings, {record}; remove it or name another one"
            )
        plan = parts_of_documents(folder, tokenizer)
        part = plan.part(rank)
        part.path("json").unlink(missing_ok=True)  # of an earlier run of the pipeline
        counts = Counter[str]()
        documents = documents_of_records(_records(data, rank, counts), Decoder("replace", counts))
        write_documents(part, plan.encoder, counted(documents, counts), counts)


def _records(data: Iterable[Any], rank: int, counts: Counter[str]) -> Iterator[Record]:
    for number, document in enumerate(data):
        counts["bytes"] += len(document.text.encode("utf-8", "surrogatepass"))
        yield document.text, partial("task {}, document {}".format, rank, number)


def read_record(folder: Path) -> dict[str, Any]:
    """Tasks, seed, tokenizer and, once complete, key of a folder of parts; DataError if damaged."""
    file = folder / DOCUMENTS_FILE
    try:
        record: dict[str, Any] = load_json(file, _RECORD)
        if not 0 < record["tasks"] <= MAX_TASKS:
            raise ValueError(f"{record['tasks']} tasks")
    except ValueError as error:
        raise DataError(
            f"{file} is damaged ({error}); remove {folder}, and run the pipeline again"
        ) from None
    return record


def parts_of_documents(folder: Path, tokenizer: Tokenizer) -> PartPlan:
    """The parts that the tasks of a datatrove pipeline write into `folder`, one each."""
    record = read_record(folder)
    return PartPlan(
        units=[Unit((), ReadOptions())] * record["tasks"],
        sources=[0] * record["tasks"],
        encoder=TextEncoder(tokenizer),
        vocab_size=len(tokenizer),
        folder=folder / "store" / "parts",
        fingerprint="",
        parts_key=fingerprint(tokenizer),
        seed=record["seed"],
        max_seq_length=0,
    )
