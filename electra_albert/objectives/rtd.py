"""Replaced-token detection: a generator fills masks, a discriminator finds what it filled. Paper: ELECTRA section 2.

Dimensions: B batch, L length, K slots a row, V vocab, D hidden.
"""

import math
from importlib import import_module
from typing import NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra_albert.config import ModelConfig, PretrainConfig, RtdConfig, SopConfig
from electra_albert.contracts import Batch, SpecialIds, Term
from electra_albert.model.electra import Discriminator, Electra, Generator
from electra_albert.objectives import mlm, spec_of
from electra_albert.objectives.evaluation import Detections, Unigram, baseline_terms
from electra_albert.objectives.masking import Targets, sample


class Corruption(NamedTuple):
    """A batch masked and filled by the generator."""

    masked_ids: Tensor  # [B, L] int64, the input of the generator
    targets: Targets
    is_shown_masked: Tensor  # [B, K] bool
    logits: Tensor  # [B, K, V] the generator's scores at the targets
    corrupted_ids: Tensor  # [B, L] int64, the input of the discriminator
    is_replaced: Tensor  # [B, L] bool, differs from the original text


class ReplacedTokenDetection(nn.Module):
    """MLM loss of the generator, detection loss of the discriminator and, where `sop` is given, its sentence order."""

    def __init__(
        self, model: ModelConfig, rtd: RtdConfig, special: SpecialIds, seed: int, sop: SopConfig | None = None
    ) -> None:
        super().__init__()
        self.rtd, self.special, self.seed, self.sop = rtd, special, seed, sop
        self.weights = {"generator_loss": rtd.generator_weight, "discriminator_loss": rtd.discriminator_weight}
        self.chance_level = {"generator_loss": math.log(model.vocab_size), "discriminator_loss": math.log(2)}
        if sop is not None:
            self.weights["sop_loss"], self.chance_level["sop_loss"] = sop.weight, math.log(2)
        self.electra = Electra(rtd.generator(model), model, with_sentence_order=sop is not None)

    @property
    def generator(self) -> Generator:
        return self.electra.generator

    @property
    def discriminator(self) -> Discriminator:
        return self.electra.discriminator

    @property
    def rate_scales(self) -> dict[str, float] | None:
        """Multiples of the learning rate by parameter name; None where all have the same."""
        generator, discriminator = self.rtd.generator_rate, self.rtd.discriminator_rate
        if generator == discriminator == 1.0:
            return None
        own = {"electra.generator.embeddings.": 1.0, "electra.generator.": generator, "electra.": discriminator}
        names = (name for name, _ in self.named_parameters())
        return {name: next(rate for start, rate in own.items() if name.startswith(start)) for name in names}

    def counts(self, batch: Batch) -> dict[str, int]:
        """Predicted tokens, tokens that are not padding, and rows with an order, found on the host."""
        counts = mlm.count_targets(batch, "generator_loss", self.rtd.mask_rate, self.special, self.sop)
        return counts | {"discriminator_loss": int(batch.attention_mask.sum())}

    def corrupt(self, batch: Batch) -> Corruption:
        """Mask the batch, let the generator fill it, and mark what changed. Draws are keyed by batch.example_id."""
        found = mlm.predict(self.generator, batch, self.rtd, self.special, self.seed)
        targets, logits = found.targets, found.logits
        keys = (batch.example_id[:, None].expand_as(targets.positions).flatten(), targets.positions.flatten())
        drawn = sample(logits.flatten(0, 1), self.rtd.temperature, self.seed, *keys).view_as(targets.positions)
        filled = torch.where(targets.weight > 0, drawn, targets.labels)
        corrupted_ids = batch.input_ids.scatter(1, targets.positions, filled)
        is_replaced = corrupted_ids != batch.input_ids  # a sampled token that happens to be right is original
        return Corruption(found.masked_ids, targets, found.is_shown_masked, logits, corrupted_ids, is_replaced)

    def detect(self, batch: Batch, corruption: Corruption) -> tuple[Tensor, Tensor]:
        """The discriminator's hidden states [B, L, D] and logits [B, L], above 0 = replaced, of the corrupted batch."""
        hidden_states = self.discriminator.encode(corruption.corrupted_ids, batch.attention_mask, batch.token_type_ids)
        return hidden_states, self.discriminator.discriminator_predictions(hidden_states)

    def forward(self, batch: Batch, step: Tensor) -> dict[str, Term]:
        """Loss and metric terms of one batch; `step` is not used, example_id is already new in every epoch."""
        corruption = self.corrupt(batch)
        return self.terms(batch, corruption, *self.detect(batch, corruption))

    def terms(self, batch: Batch, corruption: Corruption, hidden_states: Tensor, detected: Tensor) -> dict[str, Term]:
        """Loss and metric terms of a batch that was corrupted; hidden_states and detected as from `detect`."""
        is_replaced, mask = corruption.is_replaced, batch.attention_mask  # [B, L]
        nats = F.binary_cross_entropy_with_logits(detected.float(), is_replaced.float(), reduction="none")  # [B, L]
        is_flagged = (detected.detach() > 0) & mask
        hits = (is_flagged & is_replaced).sum().float()
        tokens, replaced = mask.sum(), is_replaced.sum()
        terms = mlm.prediction_terms(corruption.logits, corruption.targets, corruption.is_shown_masked, "generator")
        terms |= {
            "discriminator_loss": Term((nats * mask).sum(), tokens),
            "replaced_fraction": Term(replaced.float(), tokens),
            "discriminator_precision": Term(hits, is_flagged.sum()),
            "discriminator_recall": Term(hits, replaced),
        }
        return terms | mlm.order_terms(self.discriminator.sentence_order, hidden_states, batch)

    def score(self, batch: Batch, unigram: Unigram, detections: Detections) -> dict[str, Term]:
        """All terms of a held-out batch and of its baselines; the discriminator's logits go to `detections`."""
        corruption = self.corrupt(batch)
        hidden_states, detected = self.detect(batch, corruption)
        detections.add(detected, corruption.is_replaced, batch.attention_mask)
        terms = self.terms(batch, corruption, hidden_states, detected)
        return terms | baseline_terms(corruption.targets, corruption.is_shown_masked, unigram)


# Each is a contracts.Objective with
#   seed, special, chance_level     key of its draws, special ids, nats a count of each weighted term at chance level
#   generator, discriminator    the model that fills masks, and the one that detects replaced tokens or None
#   rate_scales                 multiples of the learning rate by parameter name, or None
#   corrupt(batch)              masked_ids, targets, is_shown_masked, logits at the targets, …
#   score(batch, unigram, detections)   terms of a held-out batch and of its baselines
PretrainingObjective: TypeAlias = mlm.MaskedLanguageModeling | ReplacedTokenDetection


def make_objective(config: PretrainConfig, special: SpecialIds) -> PretrainingObjective:
    """The objective that config.run.objective names, with initial weights from torch's stream."""
    spec = spec_of(config)
    module, _, name = spec.built_by.partition(":")
    build: type[PretrainingObjective] = getattr(import_module(module), name)
    return build(model=config.model, special=special, seed=config.training.seed, **spec.groups(config))
