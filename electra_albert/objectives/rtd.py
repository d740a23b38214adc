"""Replaced-token detection: a discriminator predicts which tokens a generator replaced. Paper: ELECTRA section 2.

Dimensions: B batch, L length, K = masking.max_targets, V vocab, D hidden.
"""

import math
from importlib import import_module
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra_albert.config import ModelConfig, PretrainConfig, RtdConfig, SopConfig
from electra_albert.contracts import Batch, Objective, PretrainingObjective, SpecialIds, Term
from electra_albert.model.electra import Discriminator, Electra, Generator
from electra_albert.objectives import masking, mlm, spec_of
from electra_albert.objectives.evaluation import Detections, Unigram, baseline_terms
from electra_albert.objectives.masking import Targets, maskable, sample, share_of, target_count

_MLM_LOSS = "discriminator_mlm_loss"


class Corruption(NamedTuple):
    """A masked batch with its replacements."""

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
        self,
        model: ModelConfig,
        rtd: RtdConfig,
        special: SpecialIds,
        seed: int,
        sop: SopConfig | None = None,
        fixed: Generator | None = None,
    ) -> None:
        super().__init__()
        self.rtd, self.special, self.seed, self.sop = rtd, special, seed, sop
        self._fixed = [fixed]  # no submodule, so neither trained nor saved
        nats = math.log(model.vocab_size)
        losses = {  # weight and chance level
            "generator_loss": (rtd.generator_weight * rtd.trains_generator, nats),
            "discriminator_loss": (rtd.discriminator_weight, math.log(2)),
            _MLM_LOSS: (rtd.mlm_weight * (rtd.mlm_share > 0), nats),
            "sop_loss": (sop.weight if sop else 0.0, math.log(2)),
        }
        self.weights = {name: weight for name, (weight, _) in losses.items() if weight}
        self.chance_level = {name: losses[name][1] for name in self.weights}
        heads = {"with_sentence_order": sop is not None, "with_mlm": rtd.mlm_share > 0}
        is_disentangled = rtd.embedding_sharing == "disentangled" and rtd.trains_generator
        self.electra = Electra(rtd.generator_config(model), model, is_disentangled=is_disentangled, **heads)
        if rtd.generator == "shared":
            _share_layers(self.electra)

    @property
    def generator(self) -> Generator | None:
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
        if self.rtd.generator == "shared":  # the layers of the discriminator have their first name in the generator
            scales = {"electra.generator.encoder.": discriminator, **scales}
        names = (name for name, _ in self.named_parameters())
        return {name: next(scale for prefix, scale in scales.items() if name.startswith(prefix)) for name in names}

    def counts(self, batch: Batch) -> dict[str, int]:
        """Counts of predicted tokens, of tokens except padding and of sequences with an order, computed on the host."""
        rate = self.rtd.mask_rate
        counts = mlm.count_targets(batch, "generator_loss", rate, self.special, self.sop)
        counts["discriminator_loss"] = int(batch.attention_mask.sum())
        if self.rtd.mlm_share:
            is_maskable = maskable(batch.input_ids, batch.attention_mask, self.special)
            counts[_MLM_LOSS] = int(share_of(target_count(is_maskable, rate), self.rtd.mlm_share).sum())
            counts["discriminator_loss"] -= counts[_MLM_LOSS]
        return {name: counts[name] for name in self.weights}

    def corrupt(self, batch: Batch) -> Corruption:
        """Mask the batch and replace targets by generator samples."""
        vocab_size = self.discriminator.config.vocab_size
        masked_ids, targets, is_masked = masking.mask(batch, vocab_size, self.rtd, self.special, self.seed)
        # The targets are in random order, so the first ones are a random part.
        kept = share_of(targets.weight.sum(1), self.rtd.mlm_share)  # [B]
        is_kept = torch.arange(targets.weight.shape[1], device=kept.device) < kept[:, None]  # [B, K]
        is_sampled = (targets.weight > 0) & ~is_kept  # [B, K]
        generator: Any = self.generator if self.rtd.trains_generator else self._fixed[0]
        _, logits = mlm.predict(generator, batch, masked_ids, targets)
        keys = (batch.example_id[:, None].expand_as(targets.positions).flatten(), targets.positions.flatten())
        sampled = sample(logits.flatten(0, 1), self.rtd.temperature, self.seed, *keys).view_as(targets.positions)
        tokens = torch.where(is_sampled, sampled, targets.labels).masked_fill(is_kept, self.special.mask)
        corrupted_ids = batch.input_ids.scatter(1, targets.positions, tokens)
        is_text = batch.attention_mask.gather(1, targets.positions)  # [B, K]
        is_classified = batch.attention_mask.scatter(1, targets.positions, is_text & ~is_kept)
        # False for a sampled token that equals the original.
        is_replaced = (corrupted_ids != batch.input_ids) & is_classified
        predicted = (masked_ids, targets, is_masked, logits)
        return Corruption(*predicted, corrupted_ids, is_replaced, is_kept, is_classified)

    def detect(self, batch: Batch, corruption: Corruption) -> tuple[Tensor, Tensor]:
        """The discriminator's hidden states [B, L, D] and logits [B, L]; a logit above 0 means replaced."""
        inputs = (corruption.corrupted_ids, batch.attention_mask, batch.token_type_ids)
        hidden_states = self.discriminator.encode(*inputs)
        return hidden_states, self.discriminator.discriminator_predictions(hidden_states)

    def forward(self, batch: Batch) -> dict[str, Term]:
        """Loss and metric terms of a batch."""
        corruption = self.corrupt(batch)
        hidden_states, logits = self.detect(batch, corruption)
        return self.terms(batch, corruption, hidden_states, logits)

    def terms(self, batch: Batch, corruption: Corruption, hidden_states: Tensor, logits: Tensor) -> dict[str, Term]:
        """Loss and metric terms of a corrupted batch; hidden_states and logits are those of `detect`."""
        is_replaced, mask = corruption.is_replaced, corruption.is_classified  # [B, L]
        nats = F.binary_cross_entropy_with_logits(logits.float(), is_replaced.float(), reduction="none")  # [B, L]
        is_detected = (logits.detach() > 0) & mask
        true_positives = (is_detected & is_replaced).sum().float()
        tokens, replaced = mask.sum(), is_replaced.sum()
        mlm_terms = self._mlm_terms(corruption, hidden_states) if self.rtd.mlm_share else {}
        predicted = (corruption.logits, corruption.targets, corruption.is_masked)
        terms = {
            **mlm.prediction_terms(*predicted, "generator"),
            "discriminator_loss": Term((nats * mask).sum(), tokens),
            "replaced_fraction": Term(replaced.float(), tokens),
            "discriminator_precision": Term(true_positives, is_detected.sum()),
            "discriminator_recall": Term(true_positives, replaced),
            **mlm_terms,
        }
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


def _share_layers(electra: Electra) -> None:
    """Make the generator's encoder the first layers of the discriminator's, of which it has the configuration."""
    encoder, whole = (model.encoder for model in (electra.generator, electra.discriminator) if model is not None)
    encoder.embedding_hidden_mapping_in = whole.embedding_hidden_mapping_in
    encoder.albert_layer_groups = whole.albert_layer_groups[: len(encoder.albert_layer_groups)]


class PretrainingModule(nn.Module, PretrainingObjective):
    """The type of an objective: a module that implements the contract, without inheriting from this class."""


_REQUIRED = (*Objective.__annotations__, *PretrainingObjective.__annotations__, "counts", "score")


def make_objective(config: PretrainConfig, special: SpecialIds, fixed: Generator | None = None) -> PretrainingModule:
    """The objective config.run.objective, initialised with torch's global generator, with a fixed generator if any."""
    spec = spec_of(config)
    module, _, name = spec.class_path.partition(":")
    build: type[PretrainingModule] = getattr(import_module(module), name)
    options = spec.groups(config) | ({"fixed": fixed} if fixed else {})
    objective = build(model=config.model, special=special, seed=config.training.seed, **options)
    missing = [attribute for attribute in _REQUIRED if not hasattr(objective, attribute)]
    assert not missing, f"{spec.class_path} lacks {', '.join(missing)}: see docs/extending.md"
    return objective
