"""Replaced-token detection: a discriminator predicts which tokens a generator replaced. Paper: ELECTRA section 2.

Dimensions: B batch, L length, K = masking.max_targets, V vocab, D hidden.
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
from electra_albert.objectives.masking import Targets, maskable, sample, share_of
from electra_albert.objectives.spans import count_at, rates_at

_MLM_LOSS = "discriminator_mlm_loss"


class Corruption(NamedTuple):
    """A masked batch with the generator's predictions and samples."""

    masked_ids: Tensor  # [B, L] int64, the input of the generator
    targets: Targets
    is_masked: Tensor  # [B, K] bool, targets replaced by [MASK]
    logits: Tensor  # [B, K, V], of the generator at the targets
    corrupted_ids: Tensor  # [B, L] int64, the input of the discriminator
    is_replaced: Tensor  # [B, L] bool, the labels of the discriminator
    is_kept: Tensor  # [B, K] bool, targets that stay [MASK] in corrupted_ids
    is_classified: Tensor  # [B, L] bool, all tokens except padding and those that stay [MASK]


class ReplacedTokenDetection(nn.Module):
    """Generator MLM loss, discriminator loss and, if `sop` is given, the discriminator's sentence-order loss."""

    def __init__(
        self, model: ModelConfig, rtd: RtdConfig, special: SpecialIds, seed: int, sop: SopConfig | None = None
    ) -> None:
        super().__init__()
        self.rtd, self.special, self.seed, self.sop, self.max_steps = rtd, special, seed, sop, 1  # see make_objective
        self.weights = {"generator_loss": rtd.generator_weight, "discriminator_loss": rtd.discriminator_weight}
        self.chance_level = {"generator_loss": math.log(model.vocab_size), "discriminator_loss": math.log(2)}
        if rtd.z_loss:
            self.weights["z_loss"], self.chance_level["z_loss"] = rtd.z_loss, math.log(model.vocab_size) ** 2
        if rtd.mlm_share:
            self.weights[_MLM_LOSS], self.chance_level[_MLM_LOSS] = rtd.mlm_weight, math.log(model.vocab_size)
        if sop is not None:
            self.weights["sop_loss"], self.chance_level["sop_loss"] = sop.weight, math.log(2)
        heads = {"with_sentence_order": sop is not None, "with_mlm": rtd.mlm_share > 0}
        is_disentangled = rtd.embedding_sharing == "disentangled"
        self.electra = Electra(rtd.generator(model), model, is_disentangled=is_disentangled, **heads)

    @property
    def generator(self) -> Generator:
        return self.electra.generator

    @property
    def discriminator(self) -> Discriminator:
        return self.electra.discriminator

    @property
    def lr_multipliers(self) -> dict[str, float] | None:
        """Multiples of the learning rate by parameter name; None if all are 1."""
        generator, discriminator = self.rtd.generator_rate, self.rtd.discriminator_rate
        if generator == discriminator == 1.0:
            return None
        scales = {"electra.generator.embeddings.": 1.0, "electra.generator.": generator, "electra.": discriminator}
        names = (name for name, _ in self.named_parameters())
        return {name: next(scale for prefix, scale in scales.items() if name.startswith(prefix)) for name in names}

    def counts(self, batch: Batch, step: int) -> dict[str, int]:
        """Counts of predicted tokens, of tokens except padding and of sequences with an order, computed on the host."""
        rates = rates_at(self.rtd, torch.tensor(step), self.max_steps)
        counts = mlm.count_targets(batch, "generator_loss", self.rtd, rates, self.special, self.sop)
        tokens = int(batch.attention_mask.sum())
        if not self.rtd.mlm_share:
            return counts | {"discriminator_loss": tokens}
        is_maskable = maskable(batch.input_ids, batch.attention_mask, self.special)
        kept = int(share_of(count_at(is_maskable, *rates), self.rtd.mlm_share).sum())
        return counts | {"discriminator_loss": tokens - kept, _MLM_LOSS: kept}

    def corrupt(self, batch: Batch, step: Tensor | None = None) -> Corruption:
        """Mask the batch at the mask rate of a step, by default the last; replace targets by generator samples."""
        rates = rates_at(self.rtd, step, self.max_steps)
        predicted = mlm.predict(self.generator, batch, self.rtd, self.special, self.seed, rates)
        targets, logits = predicted.targets, predicted.logits
        keys = (batch.example_id[:, None].expand_as(targets.positions).flatten(), targets.positions.flatten())
        sampled = sample(logits.flatten(0, 1), self.rtd.temperature, self.seed, *keys).view_as(targets.positions)
        # The targets are in random order, so the first ones are a random part.
        kept = share_of(targets.weight.sum(1), self.rtd.mlm_share)  # [B]
        is_kept = torch.arange(targets.weight.shape[1], device=kept.device) < kept[:, None]  # [B, K]
        tokens = torch.where(targets.weight > 0, sampled, targets.labels).masked_fill(is_kept, self.special.mask)
        corrupted_ids = batch.input_ids.scatter(1, targets.positions, tokens)
        is_text = batch.attention_mask.gather(1, targets.positions)  # [B, K]
        is_classified = batch.attention_mask.scatter(1, targets.positions, is_text & ~is_kept)
        # False for a sampled token that equals the original.
        is_replaced = (corrupted_ids != batch.input_ids) & is_classified
        kinds = (predicted.is_masked, logits, corrupted_ids, is_replaced, is_kept, is_classified)
        return Corruption(predicted.masked_ids, targets, *kinds)

    def detect(self, batch: Batch, corruption: Corruption) -> tuple[Tensor, Tensor]:
        """The discriminator's hidden states [B, L, D] and logits [B, L]; a logit above 0 means replaced."""
        hidden_states = self.discriminator.encode(corruption.corrupted_ids, batch.attention_mask, batch.token_type_ids)
        return hidden_states, self.discriminator.discriminator_predictions(hidden_states)

    def forward(self, batch: Batch, step: Tensor) -> dict[str, Term]:
        """Loss and metric terms of a batch; `step` sets only the mask rate: example_id differs in every epoch."""
        corruption = self.corrupt(batch, step)
        return self.terms(batch, corruption, *self.detect(batch, corruption))

    def terms(self, batch: Batch, corruption: Corruption, hidden_states: Tensor, logits: Tensor) -> dict[str, Term]:
        """Loss and metric terms of a corrupted batch; hidden_states and logits are those of `detect`."""
        is_replaced, mask = corruption.is_replaced, corruption.is_classified  # [B, L]
        nats = F.binary_cross_entropy_with_logits(logits.float(), is_replaced.float(), reduction="none")  # [B, L]
        is_detected = (logits.detach() > 0) & mask
        true_positives = (is_detected & is_replaced).sum().float()
        tokens, replaced = mask.sum(), is_replaced.sum()
        terms = mlm.prediction_terms(corruption.logits, corruption.targets, corruption.is_masked, "generator")
        terms |= {
            "discriminator_loss": Term((nats * mask).sum(), tokens),
            "replaced_fraction": Term(replaced.float(), tokens),
            "discriminator_precision": Term(true_positives, is_detected.sum()),
            "discriminator_recall": Term(true_positives, replaced),
        }
        terms |= mlm.z_terms(corruption.logits, corruption.targets, self.rtd)
        if self.rtd.mlm_share:
            terms |= self._mlm_terms(corruption, hidden_states)
        return terms | mlm.order_terms(self.discriminator.sentence_order, hidden_states, batch)

    def _mlm_terms(self, corruption: Corruption, hidden_states: Tensor) -> dict[str, Term]:
        """MLM loss and accuracy of the discriminator at the tokens that stay [MASK]; hidden_states [B, L, D]."""
        most = math.ceil(self.rtd.mlm_share * corruption.is_kept.shape[1])
        is_kept, positions = corruption.is_kept[:, :most], corruption.targets.positions[:, :most]
        targets = Targets(positions, is_kept.float(), corruption.targets.labels[:, :most])
        index = positions[:, :, None].expand(-1, -1, hidden_states.shape[-1])
        logits = self.discriminator.mlm_logits(hidden_states.gather(1, index)).float()  # [B, most, V]
        return mlm.prediction_terms(logits, targets, is_kept, "discriminator_mlm")

    def score(self, batch: Batch, unigram: Unigram, detections: Detections) -> dict[str, Term]:
        """Terms of a held-out batch, baselines included; adds the discriminator's logits to `detections`."""
        corruption = self.corrupt(batch)
        hidden_states, logits = self.detect(batch, corruption)
        detections.add(logits, corruption.is_replaced, corruption.is_classified)
        terms = self.terms(batch, corruption, hidden_states, logits)
        return terms | baseline_terms(corruption.targets, corruption.is_masked, unigram)


# Each is a contracts.Objective with
#   seed, special, chance_level    seed of its draws, special token ids, each loss at chance level in nats
#   generator, discriminator       the masked language model, and the discriminator or None
#   lr_multipliers                 multiples of the learning rate by parameter name, or None
#   corrupt(batch, step)           masked_ids, targets, is_masked, logits at the targets, …; by default at the last step
#   score(batch, unigram, detections)   terms of a held-out batch and of its baselines
PretrainingObjective: TypeAlias = mlm.MaskedLanguageModeling | ReplacedTokenDetection


def make_objective(config: PretrainConfig, special: SpecialIds) -> PretrainingObjective:
    """The objective config.run.objective, initialised with torch's global generator."""
    spec = spec_of(config)
    module, _, name = spec.class_path.partition(":")
    build: type[PretrainingObjective] = getattr(import_module(module), name)
    objective = build(model=config.model, special=special, seed=config.training.seed, **spec.groups(config))
    objective.max_steps = config.training.max_steps
    return objective
