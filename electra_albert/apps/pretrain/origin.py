"""The run, or the stock folder, whose weights a run begins with (--init_from), and the text they know.

It is opened once, when the new run starts. What later starts need of it stands in the new run's own checkpoints, so the
origin may go on training, move or be deleted.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from electra_albert.apps.prepare.folder import find_store
from electra_albert.apps.prepare.main import prepare, with_tokenizer
from electra_albert.apps.pretrain.stock_origin import (
    OPTION_SAYS_SO,
    StockWeights,
    begin_with_stock,
    find_files,
    is_stock,
    read_weights,
    stock_options,
)
from electra_albert.apps.run_folder import recorded_settings, shape_options
from electra_albert.config import BUILT_IN_CORPUS
from electra_albert.contracts import CheckpointError, DataError, UsageError
from electra_albert.corpus.examples import Rows, build_table
from electra_albert.corpus.mixture import read_sources
from electra_albert.corpus.tokenizer import fingerprint, load_tokenizer
from electra_albert.data_files.finding import find_files as find_text
from electra_albert.hub.adoption import require_same_computation
from electra_albert.hub.weight_files import all_files
from electra_albert.training.checkpoint import MANIFEST, MODEL, find_checkpoint, load_checkpoint, read_state, sha256
from electra_albert.training.distributed import World, gather_objects, main_first

if TYPE_CHECKING:
    from electra_albert.config import PretrainConfig
    from electra_albert.corpus.tokenizer import Tokenizer
    from electra_albert.objectives.registry import PretrainingObjective

LOG = logging.getLogger(__name__)

_OLD_TEXT = ("prepared_dir", "store", "max_seq_length", "seed")  # settings that tell the rows a run was scored on
_HELD_OUT, _ALL = "validation", "train"  # sides of a store


class Origin(NamedTuple):
    """A run of ours that another one begins from, or a stock folder."""

    record: dict[str, Any]  # what the new run's checkpoints keep of it
    checkpoint: Path | None  # of the run; neither it nor weights where the new run has a checkpoint of its own
    stock: StockWeights | None = None
    held_out: Rows | None = None  # of the text it was trained on, where that is still prepared


def find_origin(path: Path, config: PretrainConfig, tokenizer: Tokenizer, world: World) -> Origin:
    """What `path` gives a run to begin with. Raises as `_find_run` and `read_weights` do."""
    if not is_stock(path):
        return _find_run(path, config, tokenizer, world)
    with main_first(world):
        weights = read_weights(path, tokenizer)
        hashes = [sha256(file) for part in find_files(path) if part for file in all_files(part.weights)]
        record = {"step": None, "weights": " ".join(hashes), "options": stock_options(path)}
        run = path.absolute().parent  # of ours, where it lies in one's folder or is one's checkpoint
        exported_by = recorded_settings(run.parent if run.name == "checkpoints" else run)
        record |= {name: exported_by.get(name) for name in _OLD_TEXT}
    return Origin(record, None, weights)


def _find_run(run: Path, config: PretrainConfig, tokenizer: Tokenizer, world: World) -> Origin:
    """The newest whole checkpoint of `run`, the same on all ranks.

    Raises UsageError where it is no run with a checkpoint, CheckpointError where objective or tokenizer are others.
    """
    with main_first(world):
        found = find_checkpoint(run / "checkpoints", "auto")
        if found is None:
            raise UsageError(f"--init_from {run}: it holds no checkpoint to begin with; name a run that was trained")
        settings = recorded_settings(run)
        if settings.get("objective") != config.run.objective:
            raise CheckpointError(
                f"--init_from {run}: it was trained with objective {settings.get('objective')}, not "
                f"{config.run.objective}; leave out --objective"
            )
        known = settings.get("model")
        require_same_computation(
            config.model, known if isinstance(known, dict) else {}, f"--init_from {run}", OPTION_SAYS_SO
        )
        if fingerprint(load_tokenizer(run / "tokenizer")) != fingerprint(tokenizer):
            raise CheckpointError(
                f"--init_from {run}: it was trained with another tokenizer; leave out --tokenizer and what changes it; "
                f"to extend its vocabulary begin with the folder that was exported, {run}/discriminator or generator"
            )
    checkpoint: Path = gather_objects(found, world)[0]
    with main_first(world):
        manifest = json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8"))
        record = {"step": read_state(checkpoint)["step"], "weights": manifest["files"][MODEL]["sha256"]}
        record |= {name: settings.get(name) for name in _OLD_TEXT} | {"options": shape_options(run)}
    return Origin(record, checkpoint)


def known_origin(settings: Mapping[str, Any]) -> Origin | None:
    """The origin that the settings of a checkpoint tell of."""
    record = settings.get("origin")
    return Origin(dict(record), None) if isinstance(record, dict) else None


def require_old_corpus(config: PretrainConfig) -> None:
    """Raise UsageError or DataError where --old_corpus names no text: known before the corpus is prepared."""
    old, corpus = config.run.old_corpus, config.corpus
    with _naming(old):
        for source in read_sources(old, corpus.text_column) if old else ():
            if source.corpus != BUILT_IN_CORPUS:
                find_text(source.corpus, Counter(), corpus.encoding)


@contextmanager
def _naming(old: str | None) -> Iterator[None]:
    """What is wrong with the old text, as an error that names its option."""
    try:
        yield
    except (DataError, UsageError) as error:
        raise type(error)(f"--old_corpus {old}: {error}") from None


def with_old_corpus(origin: Origin, config: PretrainConfig, tokenizer_dir: Path, world: World) -> Origin:
    """The origin known by the text that --old_corpus names, prepared with the run's own tokenizer."""
    old, run, seed = config.run.old_corpus, config.corpus, config.training.seed
    if old is None:
        return origin
    with main_first(world):
        LOG.info(f"preparing the old text {old}")
        with _naming(old):
            store = prepare(replace(with_tokenizer(run, tokenizer_dir), corpus=old), seed).store
    known = {"prepared_dir": run.prepared_dir, "store": store.fingerprint, "max_seq_length": run.max_seq_length}
    return origin._replace(record={**origin.record, **known, "seed": seed, "side": _ALL})


def with_old_text(origin: Origin, like: Rows, world: World) -> Origin:
    """The origin with the rows it was scored on, laid out as those of `like`; a notice where they are not to be had."""
    if origin.record.get("store") is None:
        LOG.info("notice: what is forgotten of the text these weights know can be told only of an --old_corpus")
        return origin
    rows = old_rows(origin.record, like, world.world_size)
    if all(gather_objects(rows is not None, world)):  # all processes score it, or none
        return origin._replace(held_out=rows)
    LOG.info(
        f"notice: the old text is no longer prepared in {origin.record['prepared_dir']}, or too little is held out; "
        "what is forgotten of it will not be told"
    )
    return origin


def old_rows(record: Mapping[str, Any], like: Rows, fewest: int) -> Rows | None:
    """None where they are gone, or fewer than `fewest`, of which each process scores one."""
    try:
        store = find_store(Path(str(record["prepared_dir"])), str(record["store"]))
        if store is None:
            return None
        length, seed = int(record["max_seq_length"]), int(record["seed"])
        side = str(record.get("side", _HELD_OUT))
        stream = store.train if side == _ALL else store.validation
        table = build_table(stream, length, seed, store.folder / side)
    except (OSError, ValueError, TypeError):
        return None
    if table.count < fewest:
        return None
    return replace(like, stream=stream, table=table, max_seq_length=length, seed=seed)


def begin_with(origin: Origin, objective: PretrainingObjective) -> bool:
    """Copy the origin's weights into what will be trained; whether it has a generator that is still to be trained.

    Raises CheckpointError where they do not fit.
    """
    if origin.stock is not None:
        return begin_with_stock(origin.stock, objective)
    if origin.checkpoint is None:
        return False
    load_checkpoint(origin.checkpoint, objective, None)
    LOG.info(
        f"beginning with the weights of {origin.checkpoint.parent.parent} after step {origin.record['step']:,}; "
        "the optimiser, the schedule and the order of rows start anew at step 1"
    )
    return False
