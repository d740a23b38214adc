"""The parts of a pretraining run, built and checked: corpus, models and batches."""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from electra_albert.apps import machine, settings
from electra_albert.apps.pretrain import init_from
from electra_albert.apps.pretrain.initial_weights import Origin, initialize_weights
from electra_albert.config import PretrainConfig, TrainingConfig
from electra_albert.contracts import IGNORED_LABEL, LOG, Arithmetic, Batch, CheckpointError, DataError, UsageError
from electra_albert.corpus.examples import PackedExamples, TrainBatches
from electra_albert.corpus.prepare import Prepared, prepare
from electra_albert.hub import load
from electra_albert.hub.formats import TABLE, to_native
from electra_albert.hub.weights import digest
from electra_albert.keyed_random import Stream, derived_seed
from electra_albert.model.compilation import Compilation, compile_for_training, set_gradient_checkpointing
from electra_albert.model.electra import Generator
from electra_albert.objectives import evaluation, spec_of
from electra_albert.objectives.rtd import PretrainingModule, ReplacedTokenDetection, make_objective
from electra_albert.tokenization.token_texts import word_starts
from electra_albert.tokenization.tokenizer import Tokenizer, fingerprint, load_tokenizer, special_ids
from electra_albert.training.distributed import World, main_first
from electra_albert.training.optimizer import check_groups, parameter_groups

START_TOLERANCE = 0.1  # relative deviation of an initial loss from chance level, due to random weights
ORDER_TOLERANCE = 1.0  # the same for sentence order: few examples with nearly equal initial logits
_SAMPLED_EXAMPLES = 4096  # to estimate the share of examples with a sentence order
_TOKENS_PER_WORD = 20  # more on average means that the tokens do not mark words; bytes of English: 6
MUCH_UNKNOWN = 0.2  # share of unknown characters that gives a warning
SWAP_RATE = 0.5  # share of the examples with two segments that are swapped. Paper: ALBERT section 3.1


class Job(NamedTuple):
    """The parts of a run, ready for training."""

    config: PretrainConfig  # with the tokenizer's vocabulary
    prepared: Prepared
    objective: PretrainingModule
    batches: TrainBatches
    held_out: PackedExamples
    unigram: evaluation.Unigram
    arithmetic: Arithmetic
    compilation: Compilation
    is_recorded: bool  # the training step, in CUDA graphs
    origin: Origin | None
    lacks_generator: bool = False  # the generator is new and must be trained alone first
    fixed: Generator | None = None  # the generator if it is not trained


def make_job(config: PretrainConfig, world: World, recorded: Mapping[str, Any] | None = None) -> Job:
    """Prepare the corpus (in one process; the others reuse it), build the models and check them.

    recorded: the settings in the checkpoint that is resumed; None for a new run.
    """
    training, seed, device = config.training, config.training.seed, world.device
    arithmetic = choose_arithmetic(training.precision, device)
    compilation = choose_compilation(config.run.torch_compile, device)
    is_recorded = choose_recording(training, compilation, arithmetic, world)
    with main_first(world):
        if recorded is None:
            init_from.require_possible(config)
        check_key = None
        if recorded is not None:
            check_key = partial(settings.require_same_text, recorded, config.corpus)
        prepared = prepare(config.corpus, seed, check_key=check_key)
    config = replace(config, model=replace(config.model, vocab_size=len(prepared.tokenizer)))
    special = special_ids(prepared.tokenizer)
    written = prepared.store.statistics["written"]
    if (share := written["unknown_characters"] / written["characters"]) == 1:
        raise DataError("the tokenizer maps the whole text to the unknown token; name another --tokenizer")
    if share > MUCH_UNKNOWN:
        LOG.warning(f"the tokenizer maps {share:.0%} of the text to the unknown token; check --tokenizer")
    unigram = evaluation.Unigram.from_counts(prepared.store.token_counts, special.never_masked)
    batches, held_out = _batches(config, prepared, world)
    origin = init_from.find_origin(config, recorded, prepared, held_out, world)
    if any(getattr(group, "mask_unit", "token") != "token" for group in spec_of(config).groups(config).values()):
        special = special._replace(starts_word=_starts_word(prepared).to(device))
    fixed = _fixed_generator(config, prepared.tokenizer, origin)
    if fixed is not None:
        fixed.to(device)
    torch.manual_seed(derived_seed(seed, Stream.INITIAL_WEIGHTS))
    objective = make_objective(config, special, fixed).to(device)
    _check(objective, batches.micro_batches(1)[0], training.weight_decay, unigram)
    # Differs from the published code, which learns the token frequencies in hundreds of steps. The entropy keeps the
    # bias of frequent tokens near zero, where half precision is most exact.
    with torch.no_grad():
        models = (objective.generator, objective.discriminator)
        mlm_heads = [model.predictions for model in models if model and model.predictions]
        for head in mlm_heads:
            head.bias.copy_(unigram.entropy - unigram.nats)
        # Differs from Electric, which starts at 0: the energy of each token starts at the mean of -log p.
        if (model := objective.discriminator) is not None and model.has_energies:
            model.discriminator_predictions.dense_prediction.bias.fill_(unigram.entropy)
    lacks_generator = origin is not None and initialize_weights(origin, str(config.run.init_from), objective, seed)
    if mlm_heads and recorded is None and (origin is None or lacks_generator):
        LOG.info(f"output bias set to the token frequencies: initial loss {unigram.entropy:.2f} nats per masked token")
    if config.rtd.generator_warmup_steps and recorded is None and not lacks_generator:
        LOG.info("notice: --rtd.generator_warmup_steps has no effect: there is no new generator to warm up")
    if training.gradient_checkpointing:
        set_gradient_checkpointing(objective)
    compile_for_training(objective, compilation)
    data = (prepared, objective, batches, held_out, unigram)
    return Job(config, *data, arithmetic, compilation, is_recorded, origin, lacks_generator, fixed)


def _starts_word(prepared: Prepared) -> torch.Tensor:
    """Whether each token starts a word, bool [V]. Raises UsageError if hardly any token of the corpus does."""
    starts, counts = torch.tensor(word_starts(prepared.tokenizer)), torch.tensor(prepared.store.token_counts)
    words, tokens = int(counts[starts].sum()), int(counts.sum())
    if words * _TOKENS_PER_WORD < tokens:
        problem = f"only {words:,} of {tokens:,} tokens start a word (by ▁ or Ġ, or no ##)"
        raise UsageError(f"{problem}; set mask_unit to token or use another --tokenizer")
    return starts


def _fixed_generator(config: PretrainConfig, tokenizer: Tokenizer, origin: Origin | None) -> Generator | None:
    """The pretrained masked language model in the folder --rtd.generator, which is not trained; None without one.

    Checkpoints do not contain it: they record the hash of its weights. Paper: Fast-ELECTRA (Dong et al. 2023). Raises
    UsageError and CheckpointError.
    """
    if config.rtd.trains_generator or not spec_of(config).has_discriminator:
        return None
    path = Path(config.rtd.generator)
    try:
        files = load.locate(path, "generator")
    except UsageError as error:
        raise UsageError(f"--rtd.generator {error}, or own or shared") from None
    if fingerprint(load_tokenizer(files.tokenizer)) != fingerprint(tokenizer):
        raise CheckpointError(f"--rtd.generator {path} has another tokenizer; set --tokenizer {files.tokenizer}")
    stored, size = load.read_stored(files), len(tokenizer)
    length = max(config.corpus.max_seq_length, origin.held_out.max_seq_length if origin and origin.held_out else 0)
    least = {"vocab_size": size, "max_position_embeddings": length, "type_vocab_size": 2}
    for name, wanted in least.items():
        if (found := getattr(stored.config, name)) < wanted:
            raise CheckpointError(f"--rtd.generator {path} has {name} {found}, the run needs {wanted}; name another")
    tensors = load.resize_vocabulary(stored.tensors, size, [])
    model = load.build(stored._replace(config=replace(stored.config, vocab_size=size), tensors=tensors), Generator)
    return model.requires_grad_(False)


def _check(objective: PretrainingModule, batch: Batch, weight_decay: float, unigram: evaluation.Unigram) -> None:
    """Check weight sharing, the optimizer's parameter groups, and that random weights start at chance level.

    Raises UsageError for a wrong initial loss, which settings can cause, and AssertionError for the rest.
    """
    generator, discriminator = objective.generator, objective.discriminator
    if generator is not None and discriminator is not None:
        ours, theirs = (dict(model.named_parameters()) for model in (generator, discriminator))
        shares_layers = isinstance(objective, ReplacedTokenDetection) and objective.rtd.generator == "shared"
        own = [TABLE] * (discriminator.embeddings is not generator.embeddings) + ["encoder."] * (not shares_layers)
        for name in (name for name in theirs if name in ours and name.startswith(("embeddings.", "encoder."))):
            is_own = name.startswith(tuple(own))
            is_shared = ours[name].data_ptr() == theirs[name].data_ptr()
            assert is_shared != is_own, f"generator and discriminator {'do not ' * (not is_own)}share {name}"
    check_groups(objective, parameter_groups(objective, weight_decay))
    device = next(objective.parameters()).device
    with torch.no_grad():
        terms = objective(batch.to(device))
    losses = []
    for name in (name for name in objective.weights if terms[name].count):
        loss, chance = float(terms[name].sum / terms[name].count), objective.chance_level.get(name, math.nan)
        tolerance = ORDER_TOLERANCE if name == "sop_loss" else START_TOLERANCE
        if not abs(loss - chance) <= tolerance * chance:
            stated = f"chance_level[{name!r}] of {type(objective).__name__} is {chance:.3f}"
            advice = "correct chance_level or, if it is right, choose another --model.initializer_range"
            raise UsageError(f"the initial {name} is {loss:.3f}, but {stated}: {advice}")
        losses.append(f"{name.replace('_', ' ')} {loss:.2f} (chance level {chance:.2f})")
    with torch.no_grad():
        scored = objective.score(batch.to(device), unigram, evaluation.Detections())
    missing = objective.weights.keys() - scored.keys()
    assert not missing, f"score() of {type(objective).__name__} lacks the losses {sorted(missing)}"
    LOG.info(f"self-check passed: weight sharing, parameter groups, losses of random weights: {', '.join(losses)}")


def _batches(config: PretrainConfig, prepared: Prepared, world: World) -> tuple[TrainBatches, PackedExamples]:
    """Training batches and held-out examples. Raises DataError if there are too few, or none with a sentence order.

    For sentence-order objectives, all examples have two segments, and half of them are swapped.
    """
    training, store, spec = config.training, prepared.store, spec_of(config)
    length, seed, special = config.corpus.max_seq_length, training.seed, special_ids(prepared.tokenizer)
    rates: dict[str, Any] = {"swap_rate": SWAP_RATE, "one_segment_rate": 0.0} if spec.has_sentence_order else {}
    tables = ((store.train, prepared.train_table), (store.validation, prepared.validation_table))
    examples, held_out = (PackedExamples(*table, length, seed, special, **rates) for table in tables)
    batch = training.per_device_train_batch_size, training.gradient_accumulation_steps
    ranks, pin_memory = (world.rank, world.world_size), world.device.type == "cuda"
    batches = TrainBatches(examples, prepared.order, *batch, *ranks, pin_memory)
    if (size := batches.global_batch_size) > (count := batches.order.examples_per_epoch):
        problem = f"the corpus has {count} examples, but one step needs {size}"
        raise DataError(f"{problem}; lower --per_device_train_batch_size or use more text")
    if min(held_out.table.count, training.eval_examples) < world.world_size:
        problem = f"{held_out.table.count} examples are held out and --eval_examples is {training.eval_examples}"
        lack = f"but each of {world.world_size} processes needs one"
        raise DataError(f"{problem}, {lack}; use more text or raise --eval_examples")
    wanted, needed = "sentence order", "two whole sentences of one document"
    for some in (held_out, examples) if spec.has_sentence_order else ():
        index = torch.arange(min(some.table.count, _SAMPLED_EXAMPLES))
        share = float((some.gather(index, index).sentence_order_label != IGNORED_LABEL).float().mean())
        if share == 0 and some is not held_out:
            advice = "use longer documents, raise --max_seq_length or choose another --objective"
            raise DataError(f"no example contains {needed}, so there is no {wanted} to learn; {advice}")
        if share == 0:
            LOG.info(f"notice: no held-out example contains {needed}: the {wanted} is trained, but not scored")
        elif some is not held_out:
            having = f"{share:.1%} of the examples of {some.max_seq_length} tokens"
            LOG.info(f"{having} have a {wanted}: they contain {needed}")
    return batches, held_out


def job_settings(preset: str, job: Job, world: World) -> dict[str, Any]:
    """Settings that a run records and that a resumed run must match: options, batch, corpus and initial weights."""
    found = {
        "store": job.prepared.store.fingerprint,
        "tokenizer_fingerprint": fingerprint(job.prepared.tokenizer),
        "rows_taken_of_sources": list(job.prepared.order.taken),
        "origin": job.origin.record if job.origin else None,
        "compilation": job.compilation,
        "is_recorded": job.is_recorded,
        "fixed_generator": job.fixed and [digest(to_native(job.fixed.state_dict()))],
    }
    return settings.run_settings(preset, job.config, world.world_size, job.arithmetic, **found)


def choose_arithmetic(precision: Arithmetic | Literal["auto"], device: torch.device) -> Arithmetic:
    """Arithmetic of matrix products: `precision`, or for auto bfloat16 if the hardware supports it, else float32."""
    if precision != "auto":
        return precision
    if device.type == "cuda":
        has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    else:  # auto does not use it on mps: not every Mac supports it
        found = torch.cpu.get_capabilities() if device.type == "cpu" else {}
        has_bf16 = any(found.get(name, False) for name in ("amx_bf16", "avx512_bf16", "bf16"))
    return "bf16" if has_bf16 else "fp32"


def choose_compilation(wanted: Compilation | Literal["auto"], device: torch.device) -> Compilation:
    """Parts to compile with torch.compile: `wanted`, or for auto the step on a GPU. UsageError if unsupported."""
    if wanted == "none" or (wanted == "auto" and device.type != "cuda"):
        return "none"
    problem = machine.why_not_compiled(device)
    if wanted == "auto":
        return "none" if problem else "step"
    if problem:
        raise UsageError(f"--torch_compile {wanted} cannot work here: {problem}")
    return wanted


def choose_recording(training: TrainingConfig, compilation: Compilation, arithmetic: Arithmetic, world: World) -> bool:
    """Whether to record the training step in CUDA graphs; for auto, where that is known to work.

    Raises UsageError if it is asked for and cannot work.
    """
    device = world.device.type
    is_possible = device == "cuda" and arithmetic != "fp16"
    if training.cuda_graphs == "auto":
        recomputes_eagerly = training.gradient_checkpointing and compilation != "step"
        return is_possible and world.world_size == 1 and not recomputes_eagerly
    if training.cuda_graphs and not is_possible:
        problem = f"--cuda_graphs true needs CUDA and a precision other than fp16, not {device}"
        raise UsageError(f"{problem} with {arithmetic}; leave it out")
    return training.cuda_graphs
