"""Documents of a datatrove pipeline to a corpus: after its filters and deduplication, each task writes one part."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock

from electra_albert.config import TrainingConfig
from electra_albert.contracts import UsageError
from electra_albert.corpus import tokenizer as tokenizers
from electra_albert.corpus.documents import Decoder, Document, Record, documents_of_records
from electra_albert.corpus.parts import PartPlan, write_part
from electra_albert.corpus.sources import ReadOptions, Unit
from electra_albert.corpus.text_encoder import TextEncoder
from electra_albert.corpus.tokenizer import Tokenizer, load_tokenizer, save_tokenizer
from electra_albert.files import read_json, write_json

DOCUMENTS_FILE = "documents.json"  # in a folder of parts that a pipeline has written


@dataclass(frozen=True)
class WriteTokens:
    """The last step of a datatrove pipeline: tokenises its documents; task `rank` writes part `rank` of `folder`.

    `folder` is then a corpus for --corpus, with the copy of `tokenizer` in it. The number of tasks must stay the same.
    """

    folder: str
    tokenizer: str
    seed: int = TrainingConfig.seed  # of the held-out text

    def __call__(self, data: Iterable[Any], rank: int = 0, world_size: int = 1) -> None:
        """data: datatrove's documents. Raises UsageError if other tasks were started with other settings."""
        folder = Path(self.folder)
        (folder / "store" / "parts").mkdir(parents=True, exist_ok=True)
        tokenizer = load_tokenizer(Path(self.tokenizer))
        with FileLock(folder / ".lock"):
            found = read_json(folder / DOCUMENTS_FILE)
            if "key" in found or not found:  # the first task, or the first one of another run of the pipeline
                (folder / "store" / "manifest.json").unlink(missing_ok=True)
                save_tokenizer(tokenizer, folder / "tokenizer", 512)
                found = {"tasks": world_size, "seed": self.seed}
                write_json(folder / DOCUMENTS_FILE, found)
        if found != {"tasks": world_size, "seed": self.seed}:
            raise UsageError(f"{folder} was begun with {found['tasks']} tasks and seed {found['seed']}; remove it")
        plan, counts = parts_of_documents(folder, tokenizer), Counter[str]()
        write_part(plan.parts()[rank], plan.encoder, _documents(data, rank, counts), counts)


def _documents(data: Iterable[Any], rank: int, counts: Counter[str]) -> Iterator[Document]:
    def records() -> Iterator[Record]:
        for number, document in enumerate(data):
            counts["bytes"] += len(document.text.encode("utf-8", "surrogatepass"))
            yield document.text, partial("task {}, document {}".format, rank, number)

    for document in documents_of_records(records(), Decoder("replace", counts)):
        counts["documents"] += not document.continues
        counts["sentences"] += len(document.sentences)
        yield document


def parts_of_documents(folder: Path, tokenizer: Tokenizer) -> PartPlan:
    """The parts that the tasks of a datatrove pipeline write into `folder`, one each."""
    found, key = read_json(folder / DOCUMENTS_FILE), tokenizers.fingerprint(tokenizer)
    units, sources = [Unit((), ReadOptions())] * found["tasks"], [0] * found["tasks"]
    parts, encoder = folder / "store" / "parts", TextEncoder(tokenizer)
    return PartPlan(units, sources, encoder, len(tokenizer), parts, "", key, found["seed"], ())
