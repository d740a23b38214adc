"""The parts of a pretraining run, built and checked: corpus, models and batches."""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from electra_albert.apps import execution, settings
from electra_albert.apps.pretrain import init_from
from electra_albert.apps.pretrain.initial_weights import Origin, initialize_weights
from electra_albert.config.pretraining import PretrainConfig
from electra_albert.contracts import (
    IGNORED_LABEL,
    LOG,
    Arithmetic,
    Batch,
    CheckpointError,
    DataError,
    UsageError,
)
from electra_albert.corpus.examples import PackedExamples, TrainBatches
from electra_albert.corpus.prepare import Prepared, prepare
from electra_albert.hub import load
from electra_albert.hub.formats import TABLE, to_native
from electra_albert.hub.weights import digest
from electra_albert.keyed_random import Stream, derived_seed
from electra_albert.model.compilation import (
    Compilation,
    compile_for_training,
    set_gradient_checkpointing,
)
from electra_albert.model.electra import Generator
from electra_albert.objectives import evaluation, spec_of
from electra_albert.objectives.rtd import PretrainingModule, ReplacedTokenDetection, make_objective
from electra_albert.tokenization.token_texts import word_starts
from electra_albert.tokenization.tokenizer import (
    Tokenizer,
    fingerprint,
    load_tokenizer,
    special_ids,
)
from electra_albert.training.distributed import World, main_first
from electra_albert.training.optimizer import check_groups, parameter_groups

# Relative deviation of an initial loss from chance level, due to random weights.
START_TOLERANCE = 0.1
ORDER_TOLERANCE = 1.0  # the same for sentence order: few examples with nearly equal initial logits
_SAMPLED_EXAMPLES = 4096  # to estimate the share of examples with a sentence order
# More on average means that the tokens do not mark words; bytes of English: 6.
_TOKENS_PER_WORD = 20
_ORDER_NEEDS = "two whole sentences of one document"
MUCH_UNKNOWN = 0.2  # share of unknown characters that gives a warning
# Share of the examples with two segments that are swapped. Paper: ALBERT section 3.1.
SWAP_RATE = 0.5


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
    lacks_generator: bool  # the generator is new and must be trained alone first
    fixed: Generator | None  # the generator if it is not trained


def make_job(
    config: PretrainConfig, world: World, recorded: Mapping[str, Any] | None = None
) -> Job:
    """Prepare the corpus (in one process; the others reuse it), build the models and check them.

    recorded: the settings in the checkpoint that is resumed; None for a new run.
    """
    training = config.training
    seed = training.seed
    arithmetic = execution.choose_arithmetic(training.precision, world.device)
    compilation = execution.choose_compilation(config.run.torch_compile, world.device)
    is_recorded = execution.choose_recording(training, arithmetic, world)
    prepared = _prepare(config, world, recorded)
    config = replace(config, model=replace(config.model, vocab_size=len(prepared.tokenizer)))
    special = special_ids(prepared.tokenizer)
    unigram = evaluation.Unigram.from_counts(prepared.store.token_counts, special.never_masked)
    batches, held_out = _batches(config, prepared, world)
    origin = init_from.find_origin(config, recorded, prepared, held_out, world)
    groups = spec_of(config).groups(config).values()
    if any(getattr(group, "mask_unit", "token") != "token" for group in groups):
        special = special._replace(starts_word=_starts_word(prepared).to(world.device))
    fixed = _fixed_generator(config, prepared.tokenizer, origin)
    if fixed is not None:
        fixed.to(world.device)
    torch.manual_seed(derived_seed(seed, Stream.INITIAL_WEIGHTS))
    objective = make_objective(config, special, fixed).to(world.device)
    _check(objective, batches.micro_batches(1)[0], training.weight_decay, unigram)
    has_biases = _set_output_bias(objective, unigram)
    lacks_generator = origin is not None and initialize_weights(
        origin, str(config.run.init_from), objective, seed
    )
    if recorded is None and has_biases and (origin is None or lacks_generator):
        start = f"initial loss {unigram.entropy:.2f} nats per masked token"
        LOG.info(f"output bias set to the token frequencies: {start}")
    if recorded is None and config.rtd.generator_warmup_steps and not lacks_generator:
        LOG.info(
            "notice: --rtd.generator_warmup_steps has no effect: "
            "there is no new generator to warm up"
        )
    if training.gradient_checkpointing:
        set_gradient_checkpointing(objective)
    compile_for_training(objective, compilation)
    parts = (config, prepared, objective, batches, held_out, unigram)
    return Job(*parts, arithmetic, compilation, is_recorded, origin, lacks_generator, fixed)


def _prepare(config: PretrainConfig, world: World, recorded: Mapping[str, Any] | None) -> Prepared:
    """The prepared corpus. Raises DataError if the tokenizer knows nothing of the text."""
    with main_first(world):
        check_key = None
        if recorded is None:
            init_from.require_possible(config)
        else:
            check_key = partial(settings.require_same_text, recorded, config.corpus)
        prepared = prepare(config.corpus, config.training.seed, check_key=check_key)
    written = prepared.store.statistics["written"]
    unknown_share = written["unknown_characters"] / written["characters"]
    if unknown_share == 1:
        raise DataError(
            "the tokenizer maps the whole text to the unknown token; name another --tokenizer"
        )
    if unknown_share > MUCH_UNKNOWN:
        LOG.warning(
            f"the tokenizer maps {unknown_share:.0%} of the text to the unknown token; "
            "check --tokenizer"
        )
    return prepared


def _set_output_bias(objective: PretrainingModule, unigram: evaluation.Unigram) -> bool:
    """Set the biases of the heads that predict tokens to the token frequencies.

    Returns whether there is one. Differs from the published code, which learns the frequencies in
    hundreds of steps. The entropy keeps the bias of frequent tokens near zero, where half precision
    is most exact.
    """
    models = [model for model in (objective.generator, objective.discriminator) if model]
    heads = [model.predictions for model in models if model.predictions]
    with torch.no_grad():
        for head in heads:
            head.bias.copy_(unigram.entropy - unigram.nats)
        # Differs from Electric, which starts at 0: each energy starts at the mean of -log p.
        discriminator = objective.discriminator
        if discriminator is not None and discriminator.has_energies:
            discriminator.discriminator_predictions.dense_prediction.bias.fill_(unigram.entropy)
    return bool(heads)


def _starts_word(prepared: Prepared) -> torch.Tensor:
    """Whether each token starts a word, bool [V].

    Raises UsageError if hardly any token of the corpus does.
    """
    starts = torch.tensor(word_starts(prepared.tokenizer))
    counts = torch.tensor(prepared.store.token_counts)
    words = int(counts[starts].sum())
    tokens = int(counts.sum())
    if words * _TOKENS_PER_WORD < tokens:
        raise UsageError(
            f"only {words:,} of {tokens:,} tokens start a word (by ▁ or Ġ, or no ##); "
            "set mask_unit to token or use another --tokenizer"
        )
    return starts


def _fixed_generator(
    config: PretrainConfig, tokenizer: Tokenizer, origin: Origin | None
) -> Generator | None:
    """The pretrained masked language model in the folder --rtd.generator; None without one.

    It is not trained, and checkpoints contain only the hash of its weights. Raises UsageError and
    CheckpointError. Paper: Fast-ELECTRA (Dong et al. 2023).
    """
    if config.rtd.trains_generator or not spec_of(config).has_discriminator:
        return None
    path = Path(config.rtd.generator)
    try:
        files = load.locate(path, "generator")
    except UsageError as error:
        raise UsageError(f"--rtd.generator {error}, or own or shared") from None
    if fingerprint(load_tokenizer(files.tokenizer)) != fingerprint(tokenizer):
        raise CheckpointError(
            f"--rtd.generator {path} has another tokenizer; set --tokenizer {files.tokenizer}"
        )
    stored = load.read_stored(files)
    size = len(tokenizer)
    length = config.corpus.max_seq_length
    if origin is not None and origin.held_out is not None:
        length = max(length, origin.held_out.max_seq_length)
    least = {"vocab_size": size, "max_position_embeddings": length, "type_vocab_size": 2}
    for name, minimum in least.items():
        value = getattr(stored.config, name)
        if value < minimum:
            raise CheckpointError(
                f"--rtd.generator {path} has {name} {value}, the run needs {minimum}; name another"
            )
    stored = load.without_unused_rows(stored, size)
    return load.build(stored, Generator).requires_grad_(False)


def _check(
    objective: PretrainingModule, batch: Batch, weight_decay: float, unigram: evaluation.Unigram
) -> None:
    """Check weight sharing, parameter groups, and that random weights start at chance level.

    Raises UsageError for a wrong initial loss, which settings can cause, and AssertionError for the
    rest.
    """
    _check_sharing(objective)
    check_groups(objective, parameter_groups(objective, weight_decay))
    batch = batch.to(next(objective.parameters()).device)
    name_of_class = type(objective).__name__
    with torch.no_grad():
        terms = objective(batch)
        scores = objective.score(batch, unigram, evaluation.Detections())
    losses = []
    for name in objective.weights:
        assert name.endswith("_loss"), f"{name} of {name_of_class}.weights must end with _loss"
        if not terms[name].count:
            continue
        loss = float(terms[name].sum / terms[name].count)
        chance = objective.chance_level.get(name, math.nan)
        tolerance = ORDER_TOLERANCE if name == "sop_loss" else START_TOLERANCE
        if not abs(loss - chance) <= tolerance * chance:
            raise UsageError(
                f"the initial {name} is {loss:.3f}, "
                f"but chance_level[{name!r}] of {name_of_class} is {chance:.3f}: "
                "correct it or, if it is right, choose another --model.initializer_range"
            )
        losses.append(f"{name.replace('_', ' ')} {loss:.2f} (chance level {chance:.2f})")
    missing = objective.weights.keys() - scores.keys()
    assert not missing, f"score() of {name_of_class} lacks the losses {sorted(missing)}"
    LOG.info(
        "self-check passed: weight sharing, parameter groups, losses of random weights: "
        f"{', '.join(losses)}"
    )


def _check_sharing(objective: PretrainingModule) -> None:
    """Check by storage which weights generator and discriminator share."""
    generator = objective.generator
    discriminator = objective.discriminator
    if generator is None or discriminator is None:
        return
    separate = []
    if discriminator.embeddings is not generator.embeddings:
        separate.append(TABLE)
    if not (isinstance(objective, ReplacedTokenDetection) and objective.rtd.generator == "shared"):
        separate.append("encoder.")
    parameters = dict(generator.named_parameters())
    for name, parameter in discriminator.named_parameters():
        if name in parameters and name.startswith(("embeddings.", "encoder.")):
            is_shared = parameters[name].data_ptr() == parameter.data_ptr()
            should_share = not name.startswith(tuple(separate))
            relation = "do not share" if should_share else "share"
            assert is_shared == should_share, f"generator and discriminator {relation} {name}"


def _batches(
    config: PretrainConfig, prepared: Prepared, world: World
) -> tuple[TrainBatches, PackedExamples]:
    """Training batches and held-out examples; for sentence order all have two segments.

    Raises DataError if there are too few, or none with a sentence order.
    """
    training = config.training
    special = special_ids(prepared.tokenizer)
    has_order = spec_of(config).has_sentence_order
    rates = {"swap_rate": SWAP_RATE, "one_segment_rate": 0.0} if has_order else {}
    store = prepared.store
    length = config.corpus.max_seq_length
    examples = PackedExamples(
        store.train, prepared.train_table, length, training.seed, special, **rates
    )
    held_out = replace(examples, split=store.validation, table=prepared.validation_table)
    batches = TrainBatches(
        examples,
        prepared.order,
        training.per_device_train_batch_size,
        training.gradient_accumulation_steps,
        world.rank,
        world.world_size,
        world.device.type == "cuda",
    )
    count = batches.order.examples_per_epoch
    if batches.global_batch_size > count:
        raise DataError(
            f"the corpus has {count} examples, but one step needs {batches.global_batch_size}; "
            "lower --per_device_train_batch_size or use more text"
        )
    count = held_out.table.count
    if min(count, training.eval_examples) < world.world_size:
        raise DataError(
            f"{count} examples are held out and --eval_examples is {training.eval_examples}, "
            f"but each of {world.world_size} processes needs one; "
            "use more text or raise --eval_examples"
        )
    if has_order:
        _check_order(examples, held_out)
    return batches, held_out


def _check_order(examples: PackedExamples, held_out: PackedExamples) -> None:
    """Log the share of examples with a sentence order. Raises DataError if it is 0."""
    if not ordered_share(held_out):
        LOG.info(
            f"notice: no held-out example contains {_ORDER_NEEDS}: "
            "the sentence order is trained, but not scored"
        )
    share = ordered_share(examples)
    if not share:
        raise DataError(
            f"no example contains {_ORDER_NEEDS}, so there is no sentence order to learn; "
            "use longer documents, raise --max_seq_length or choose another --objective"
        )
    LOG.info(
        f"{share:.1%} of the examples of {examples.max_seq_length} tokens have a sentence order: "
        f"they contain {_ORDER_NEEDS}"
    )


def first_examples(packed: PackedExamples, count: int) -> Batch:
    """The first `count` examples, or all of them."""
    index = torch.arange(min(count, packed.table.count))
    return packed.gather(index, index)


def ordered_share(examples: PackedExamples) -> float:
    """The share of the first examples that have a sentence order."""
    labels = first_examples(examples, _SAMPLED_EXAMPLES).sentence_order_label
    return float((labels != IGNORED_LABEL).float().mean())


def job_settings(preset: str, job: Job, world: World) -> dict[str, Any]:
    """Settings that a run records: options, batch, corpus and initial weights."""
    return settings.run_settings(
        preset,
        job.config,
        world.world_size,
        arithmetic=job.arithmetic,
        store=job.prepared.store.fingerprint,
        tokenizer_fingerprint=fingerprint(job.prepared.tokenizer),
        rows_taken_of_sources=list(job.prepared.order.taken),
        origin=job.origin.record if job.origin else None,
        compilation=job.compilation,
        is_recorded=job.is_recorded,
        fixed_generator=job.fixed and [digest(to_native(job.fixed.state_dict()))],
    )
