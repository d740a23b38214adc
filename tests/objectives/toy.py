"""Small objectives and batches of text without a pattern.

Sizes are all different and odd where they can be. Dimensions: B rows, L length, K slots, V vocabulary.
"""

import torch
from torch import Tensor

from electra_albert import config as options
from electra_albert.config import ModelConfig, RtdConfig, SopConfig
from electra_albert.contracts import IGNORED_LABEL, Batch, SpecialIds
from electra_albert.keyed_random import Stream, bits
from electra_albert.objectives import rtd as objectives
from electra_albert.objectives.rtd import PretrainingObjective, ReplacedTokenDetection

PAD, UNKNOWN, CLS, SEP, MASK = range(5)
SPECIAL = SpecialIds(PAD, UNKNOWN, CLS, SEP, MASK, never_masked=(PAD, UNKNOWN, CLS, SEP, MASK))
SEED = 11
MODEL = ModelConfig(
    vocab_size=19,  # so few that a drawn token is often the right one
    embedding_size=11,
    hidden_size=28,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=37,
    max_position_embeddings=64,
)
STEP = torch.tensor(0)
OBJECTIVES = ("rtd", "rtd_sop", "mlm", "mlm_sop")


def make_objective(
    model: ModelConfig = MODEL,
    rtd: RtdConfig | None = None,
    kind: type[ReplacedTokenDetection] = ReplacedTokenDetection,
    sop: SopConfig | None = None,
) -> ReplacedTokenDetection:
    """An objective with the same weights on every call."""
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        return kind(model, rtd or RtdConfig(), SPECIAL, SEED, sop)


def build(name: str, model: ModelConfig = MODEL, mask_rate: float = 0.5, seed: int = SEED) -> PretrainingObjective:
    """The objective of that name with the same weights on every call."""
    config = options.PretrainConfig(
        run=options.RunConfig(objective=name),  # type: ignore[arg-type]
        training=options.TrainingConfig(seed=seed),
        model=model,
        rtd=RtdConfig(mask_rate=mask_rate),
        mlm=options.MlmConfig(mask_rate=mask_rate),
        corpus=options.CorpusConfig(max_seq_length=model.max_position_embeddings),
    )
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        return objectives.make_objective(config, SPECIAL)


def make_batch(
    lengths: tuple[int, ...] = (23, 17, 9, 4, 23), length: int = 23, vocab: int = MODEL.vocab_size, salt: int = 0
) -> Batch:
    """Rows `[CLS] A [SEP] B [SEP]` and padding, of the lengths given, keyed by their number from 100 on."""
    row, place = torch.arange(len(lengths)) + 100, torch.arange(length)
    size = torch.tensor(lengths)[:, None]
    words = len(SPECIAL.never_masked)
    drawn = words + bits(salt, Stream.EXAMPLE, row[:, None], place) % (vocab - words)  # [B, L]
    attention_mask = place < size
    is_separator = (place == size // 2) | (place == size - 1)
    input_ids = torch.where(place == 0, CLS, torch.where(is_separator, SEP, drawn))
    return Batch(
        input_ids=torch.where(attention_mask, input_ids, PAD),
        attention_mask=attention_mask,
        token_type_ids=((place > size // 2) & attention_mask).long(),
        sentence_order_label=torch.full((len(lengths),), IGNORED_LABEL),
        example_id=row,
    )


def ordered(batch: Batch) -> Batch:
    """The same rows with orders to tell: swapped, none, in order, and so on."""
    labels = torch.tensor([1, IGNORED_LABEL, 0])
    return batch._replace(sentence_order_label=labels[torch.arange(len(batch.input_ids)) % 3])


def rows_of(batch: Batch, rows: Tensor) -> Batch:
    """The same rows in another order or another batch."""
    return Batch(*(field[rows] for field in batch[:-1]))
