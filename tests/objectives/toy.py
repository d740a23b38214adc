"""Small objectives and batches of random tokens.

Sizes are all different, and odd if possible. Dimensions: B batch, L length, V vocab.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from electra_albert.config.model import ModelConfig
from electra_albert.config.objectives import MlmConfig, RtdConfig
from electra_albert.config.pretraining import CorpusConfig, PretrainConfig, RunConfig
from electra_albert.config.training import TrainingConfig
from electra_albert.contracts import IGNORED_LABEL, Batch, SpecialIds
from electra_albert.keyed_random import Stream, bits
from electra_albert.model.electra import Generator, initialize_models
from electra_albert.objectives import rtd as objectives
from electra_albert.objectives.rtd import PretrainingModule, ReplacedTokenDetection

PAD, UNKNOWN, CLS, SEP, MASK = range(5)
STARTS_WORD = torch.arange(100) % 2 == 0
SPECIAL = SpecialIds(PAD, UNKNOWN, CLS, SEP, MASK, (PAD, UNKNOWN, CLS, SEP, MASK), STARTS_WORD)
SEED = 11
# The vocabulary is so small that a sampled token is often correct.
SIZES = {"vocab_size": 19, "embedding_size": 11, "hidden_size": 28, "intermediate_size": 37}
# Of the sequences in three batches of one shape.
LENGTHS = ((23, 17, 9, 4, 23), (5, 23, 23, 23, 8), (23, 23, 23, 23, 23))
MODEL = ModelConfig(**SIZES, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=64)
RTD_OPTIONS = {  # by the second part of a name in OBJECTIVES
    "": {},
    "options": {"mlm_share": 0.4, "mlm_weight": 2.0, "embedding_sharing": "disentangled"},
    "shared": {"generator": "shared", "generator_size": 1.0, "generator_layers": 1},
    "fixed": {"generator": "a/folder", "temperature": 2.0},
}
OBJECTIVES = ("rtd", "rtd_sop", "electric", "mlm", "mlm_sop", "mlm with options")
OBJECTIVES += tuple(f"rtd with {name}" for name in RTD_OPTIONS if name)


def make_objective(
    model: Any = MODEL, rtd: Any = None, kind: Any = ReplacedTokenDetection, sop: Any = None
) -> Any:
    """An objective with the same weights on every call."""
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        return kind(model, rtd or RtdConfig(), SPECIAL, SEED, sop)


def config_of(
    name: str, model: ModelConfig = MODEL, mask_rate: float = 0.5, seed: int = SEED, **more: Any
) -> PretrainConfig:
    """The settings of one of OBJECTIVES; `more` are further options of masking."""
    objective, _, changes = name.partition(" with ")
    rtd = RtdConfig(mask_rate=mask_rate, **RTD_OPTIONS[changes], **more)
    mlm = MlmConfig(mask_rate=mask_rate, **more)
    corpus = CorpusConfig(max_seq_length=model.max_position_embeddings)
    run = RunConfig(objective=objective)
    training = TrainingConfig(seed=seed)
    return PretrainConfig(run=run, training=training, model=model, rtd=rtd, mlm=mlm, corpus=corpus)


def build(name: str, model: ModelConfig = MODEL, **more: Any) -> PretrainingModule:
    """The objective of config_of(name, ...) with the same weights on every call."""
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        fixed = make_fixed(model) if name.endswith("fixed") else None
        return objectives.make_objective(config_of(name, model, **more), SPECIAL, fixed)


def make_fixed(model: ModelConfig) -> Generator:
    """A generator of another size without gradients, as of a folder."""
    generator = Generator(replace(model, embedding_size=13, hidden_size=36, num_hidden_layers=3))
    initialize_models(generator)
    return generator.eval().requires_grad_(False)


def make_batch(
    lengths: tuple[int, ...] = (23, 17, 9, 4, 23),
    length: int = 23,
    vocab: int = MODEL.vocab_size,
    salt: int = 0,
) -> Batch:
    """Sequences `[CLS] A [SEP] B [SEP]` and padding, of the given lengths, with example ids from
    100.
    """
    example_id = torch.arange(len(lengths)) + 100
    position = torch.arange(length)
    size = torch.tensor(lengths)[:, None]
    special = len(SPECIAL.never_masked)
    # [B, L].
    drawn = special + bits(salt, Stream.EXAMPLE, example_id[:, None], position) % (vocab - special)
    attention_mask = position < size
    is_separator = (position == size // 2) | (position == size - 1)
    input_ids = torch.where(position == 0, CLS, torch.where(is_separator, SEP, drawn))
    return Batch(
        input_ids=torch.where(attention_mask, input_ids, PAD),
        attention_mask=attention_mask,
        token_type_ids=((position > size // 2) & attention_mask).long(),
        sentence_order_label=torch.full((len(lengths),), IGNORED_LABEL),
        example_id=example_id,
    )


def ordered(batch: Batch) -> Batch:
    """The batch with sentence-order labels: swapped, none, in order, and so on."""
    labels = torch.tensor([1, IGNORED_LABEL, 0])
    return batch._replace(sentence_order_label=labels[torch.arange(len(batch.input_ids)) % 3])


def select(batch: Batch, index: Tensor) -> Batch:
    """The examples of a batch at these indices."""
    return Batch(*(field[index] for field in batch[:-1]))
