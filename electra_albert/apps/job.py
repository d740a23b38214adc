"""What a pretraining run trains with: corpus, pair and batches, composed and checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch

from electra_albert.apps.prepare import prepare
from electra_albert.apps.run_folder import run_settings
from electra_albert.apps.self_check import self_check
from electra_albert.config import PretrainConfig
from electra_albert.contracts import Arithmetic, DataError
from electra_albert.corpus.batches import TrainBatches
from electra_albert.corpus.examples import Rows
from electra_albert.corpus.tokenizer import fingerprint
from electra_albert.keyed_random import Stream, derived_seed
from electra_albert.objectives.evaluation import Unigram
from electra_albert.objectives.masking import SpecialIds
from electra_albert.objectives.rtd import ReplacedTokenDetection
from electra_albert.training.distributed import World, main_first

if TYPE_CHECKING:
    from electra_albert.apps.prepare import Prepared


class Job(NamedTuple):
    """Everything a run trains with, ready to start."""

    config: PretrainConfig  # with the tokenizer's vocabulary
    prepared: Prepared
    objective: ReplacedTokenDetection
    batches: TrainBatches
    held_out: Rows
    unigram: Unigram
    arithmetic: Arithmetic


def make_job(config: PretrainConfig, world: World, say: Callable[[str], None]) -> Job:
    """Prepare the corpus (one process does, the others find it done), build the pair and check it."""

    training, length, seed = config.training, config.corpus.max_seq_length, config.training.seed
    with main_first(world):
        prepared = prepare(config.corpus, seed, say)
    store, tokenizer = prepared.store, prepared.tokenizer
    rows = Rows(store.train, prepared.train_table, length, seed)
    held_out = Rows(store.validation, prepared.validation_table, length, seed)
    config = replace(config, model=replace(config.model, vocab_size=len(tokenizer)))
    batches = TrainBatches(
        rows,
        seed,
        training.per_device_train_batch_size,
        training.gradient_accumulation_steps,
        world.rank,
        world.world_size,
        pin_memory=world.device.type == "cuda",
    )
    if batches.global_batch_size > rows.table.count:
        raise DataError(
            f"the corpus gives {rows.table.count} rows, one update takes {batches.global_batch_size}; "
            "lower --per_device_train_batch_size or give more text"
        )
    if min(held_out.table.count, training.eval_examples) < world.world_size:
        raise DataError(
            f"{held_out.table.count} rows are held out, --eval_examples takes {training.eval_examples}, "
            f"and each of {world.world_size} processes needs one; give more text or evaluate more"
        )
    torch.manual_seed(derived_seed(seed, Stream.INITIAL_WEIGHTS))
    special = SpecialIds(tokenizer.mask_token_id, tuple(sorted(tokenizer.all_special_ids)))
    objective = ReplacedTokenDetection(config.model, config.rtd, special, seed).to(world.device)
    self_check(objective, batches.micro_batches(1)[0], training.weight_decay, say)
    unigram = Unigram.from_counts(store.token_counts, special.never_masked)
    arithmetic = choose_arithmetic(training.precision, world.device)
    return Job(config, prepared, objective, batches, held_out, unigram, arithmetic)


def job_settings(preset: str, job: Job, world: World) -> dict[str, Any]:
    """What is recorded of a run and compared when it is taken up again: its options, its batch and its corpus."""

    corpus = {"store": job.prepared.store.fingerprint, "tokenizer_fingerprint": fingerprint(job.prepared.tokenizer)}
    return run_settings(preset, job.config, world.world_size, job.arithmetic, corpus)


def choose_arithmetic(precision: Arithmetic | Literal["auto"], device: torch.device) -> Arithmetic:
    """How matrix products are made: as asked for, or in bfloat16 where the processor computes in it."""
    if precision != "auto":
        return precision
    if device.type == "cuda":
        has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        found = torch.cpu.get_capabilities()
        has_bf16 = any(found.get(name, False) for name in ("amx_bf16", "avx512_bf16", "bf16"))
    return "bf16" if has_bf16 else "fp32"
