"""The weights that a run starts from (--init_from): read, grown to its sizes and copied."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from electra_albert.config.model import ModelConfig
from electra_albert.config.objectives import RtdConfig
from electra_albert.contracts import LOG, CheckpointError, UsageError
from electra_albert.corpus.examples import PackedExamples
from electra_albert.hub import load
from electra_albert.hub.find import ModelFiles, locate
from electra_albert.hub.formats import TABLE
from electra_albert.hub.load import Stored, require_same_computation
from electra_albert.model import growth
from electra_albert.model.electra import Discriminator
from electra_albert.model.encoder import Backbone, EncoderModel
from electra_albert.objectives.rtd import PretrainingModule
from electra_albert.tokenization.tokenizer import Tokenizer, load_tokenizer
from electra_albert.training.checkpoint import load_checkpoint

_OPTION = "correct or remove the option that changes it"


class Origin(NamedTuple):
    """The source of a run's initial weights.

    Without checkpoint and stock the run has its own checkpoint.
    """

    record: dict[str, Any]  # saved in the new run's checkpoints
    checkpoint: Path | None = None  # of another run
    stock: tuple[Stored, ...] = ()  # the encoder, and the generator next to it, if any
    held_out: PackedExamples | None = None  # of the text they were trained on, if it still exists


def find_models(folder: Path) -> list[ModelFiles]:
    """The encoder in a folder, and for a discriminator the generator next to it, if any."""
    encoder = locate(folder)
    parent = encoder.weights.absolute().parent
    if encoder.part == "discriminator":  # of a checkpoint, with or without a generator
        return list(dict.fromkeys((encoder, locate(encoder.weights, "any"))))
    generator = parent.with_name("generator")
    if parent.name == "discriminator" and generator.is_dir():
        return [encoder, locate(generator, "generator")]
    return [encoder]


def read_weights(folder: Path, tokenizer: Tokenizer, rtd: RtdConfig) -> tuple[Stored, ...]:
    """The folder's models for a run with `tokenizer`, the folder's own or an extension of it."""
    files = find_models(folder)
    before = load_tokenizer(files[0].tokenizer)
    size = len(before)
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    if before.convert_ids_to_tokens(range(size)) != tokens[:size]:
        raise UsageError(
            f"--init_from {folder}: its embeddings belong to its own tokenizer; "
            "remove --tokenizer; to extend its vocabulary use --extend_vocab_to"
        )
    subwords = before.backend_tokenizer.model
    new = [[token.id for token in subwords.tokenize(text)] for text in tokens[size:]]
    models = [load.read_stored(model) for model in files]
    for stored in models:
        load.build(stored, EncoderModel)  # refuses weights that do not match the configuration
    rows = models[0].config.vocab_size
    if rows < size:
        raise CheckpointError(
            f"{folder}: its tokenizer has {size} tokens, but its embedding table has {rows} rows"
        )
    models = [
        stored._replace(tensors=load.resize_vocabulary(stored.tensors, size, new))
        for stored in models
    ]
    if len(models) > 1:
        _require_sharing(folder, rtd, *models)
    if new:
        LOG.info(
            f"{len(new):,} new tokens are initialized with the mean embedding of their former "
            "subwords"
        )
    if rows > size:
        LOG.info(
            f"{rows - size} rows of the embedding table in {folder} belong to no token "
            "and are dropped"
        )
    return tuple(models)


def _require_sharing(folder: Path, rtd: RtdConfig, encoder: Stored, generator: Stored) -> None:
    """Raise CheckpointError unless the models share what the run's models share."""
    separate = {TABLE} if rtd.embedding_sharing == "disentangled" else set()
    if load.different_embeddings(encoder.tensors, generator.tensors) - separate:
        raise CheckpointError(
            f"{folder}: the two models do not share their embeddings; "
            "use --rtd.embedding_sharing disentangled, or move one to another folder"
        )
    if rtd.generator == "shared":
        for name, tensor in generator.tensors.items():
            same = encoder.tensors.get(name)
            if "encoder." in name and (same is None or not torch.equal(same, tensor)):
                raise CheckpointError(
                    f"{folder}: the two models do not share their layers; use --rtd.generator own"
                )


def initialize_weights(origin: Origin, name: str, objective: PretrainingModule, seed: int) -> bool:
    """Copy the weights of `name` into the objective.

    A stock encoder becomes the discriminator, if any. With a masked-token head it becomes a
    generator of its size too. Returns whether the generator is new and must be trained.
    """
    if origin.checkpoint is None and not origin.stock:
        return False
    LOG.info("optimizer, learning rate schedule and example order start at step 1")
    if origin.checkpoint is not None:
        grow = partial(_grow_run, origin.checkpoint, name, objective, seed)
        load_checkpoint(origin.checkpoint, objective, None, grow)
        LOG.info(f"initial weights: {name} after step {origin.record['step']:,}")
        return False
    encoder, *generators = origin.stock
    discriminator = objective.discriminator
    generator: Any = objective.generator  # None if none is trained
    new, unused = _copy_tensors(discriminator or generator, encoder, name, seed)
    for stored in origin.stock:
        unused += stored.unsupported_heads
    is_pair = discriminator is not None and generator is not None
    if not is_pair:
        unused += ["generator"] * len(generators)
    else:
        if not generators and "predictions" in unused and generator.config == discriminator.config:
            generators = [encoder]
            unused.remove("predictions")
        new += _initialize_generator(generator, discriminator, generators, name, seed)
    LOG.info(f"initial weights: {name}; randomly initialized: {', '.join(new) or 'nothing'}")
    if unused:
        LOG.info(f"not used: {', '.join(unused)}")
    return is_pair and not generators


def _initialize_generator(
    generator: Any, discriminator: Any, sources: list[Stored], name: str, seed: int
) -> list[str]:
    """Copy the weights of a source, if any; returns the generator's new parts."""
    new = [] if sources else ["generator"]
    advice = "to get a new generator, copy the discriminator's folder elsewhere and name the copy"
    for stored in sources:  # with the discriminator's attention heads times rtd.generator_size
        new += _copy_tensors(generator, stored, f"{name}'s generator", seed, advice)[0]
    table = discriminator.embeddings.word_embeddings.weight
    base = generator.embeddings.word_embeddings.weight
    if table is not base:  # disentangled: the differences from the base are trained
        with torch.no_grad():
            if not sources:
                base.copy_(table)
            table -= base
    return new


def _grow_run(
    checkpoint: Path,
    name: str,
    objective: PretrainingModule,
    seed: int,
    tensors: dict[str, Tensor],
) -> dict[str, Tensor]:
    """The tensors of a run's checkpoint, grown to the sizes of the objective's models."""
    models = {"discriminator": objective.discriminator, "generator": objective.generator}
    for part, model in models.items():
        if model is None:
            continue
        start = next(f"{path}." for path, module in objective.named_modules() if module is model)
        source = load.read_config(locate(checkpoint, part))
        of_model = {
            key.removeprefix(start): tensor
            for key, tensor in tensors.items()
            if key.startswith(start)
        }
        grown = _grow(of_model, source, model.config, f"{name}'s {part}", seed)
        tensors = tensors | {start + key: tensor for key, tensor in grown.items()}
    return tensors


def _grow(
    tensors: Mapping[str, Tensor],
    source: ModelConfig,
    config: ModelConfig,
    name: str,
    seed: int,
    advice: str = _OPTION,
) -> dict[str, Tensor]:
    """The tensors of a source model, grown to `config` and logged."""
    changes = describe_growth(source, config, name, advice)
    if changes:
        LOG.info(f"{name} grows: {changes}")
    return growth.grow(tensors, source, config, seed)


def describe_growth(
    source: ModelConfig, config: ModelConfig, name: str, advice: str = _OPTION
) -> str:
    """The changes of a growth, if any.

    Raises CheckpointError if the grown model cannot compute the same.
    """
    require_same_computation(config, source, name, advice)
    try:
        return growth.describe(source, config)
    except ValueError as error:
        raise CheckpointError(f"{name}: {error}; {advice}") from None


def _copy_tensors(
    model: Backbone, source: Stored, name: str, seed: int, advice: str = _OPTION
) -> tuple[list[str], list[str]]:
    """Copy the tensors that match, grown to the model's size.

    Returns the model's new parts and the source's unused parts.
    """
    tensors = _grow(source.tensors, source.config, model.config, name, seed, advice)
    if isinstance(model, Discriminator) and model.has_energies != source.has_energies:
        head = "discriminator_predictions."
        tensors = {key: tensor for key, tensor in tensors.items() if not key.startswith(head)}
    new = load.load_partial(model, tensors, name)
    used = {part for part, _ in model.named_children()} - set(new)
    if "sentence_order" in used and "sentence_order.pooler" not in new:
        used.add("pooler")
    parts = dict.fromkeys(key.split(".")[0] for key in source.tensors)
    return new, [part for part in parts if part not in used]
