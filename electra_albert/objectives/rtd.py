"""Replaced-token detection: a discriminator predicts which tokens a generator replaced.

Paper: ELECTRA section 2.
Dimensions: B batch, L length, K = masking.max_targets, V vocab, D hidden.
"""

import math
from pkgutil import resolve_name
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra_albert.config.model import ModelConfig
from electra_albert.config.objectives import RtdConfig, SopConfig
from electra_albert.config.pretraining import PretrainConfig
from electra_albert.contracts import Batch, Objective, PretrainingObjective, SpecialIds, Term
from electra_albert.model.electra import Discriminator, Electra, Generator
from electra_albert.objectives import mlm, spec_of
from electra_albert.objectives.evaluation import Detections, Unigram, baseline_terms
from electra_albert.objectives.masking import Targets, sample, share_of

_MLM_LOSS = "discriminator_mlm_loss"


class Corruption(NamedTuple):
    """A masked batch with its replacements.

    mlm_share .5, four targets; the generator samples `old`, the original:

        input_ids       the  old  fox     ran    home
        masked_ids      the  [M]  [M]     [M]    [M]
        corrupted_ids   the  old  dog     [M]    [M]
        is_replaced      0    0    1       0      0
        is_classified    1    1    1       0      0
    """

    masked_ids: Tensor  # [B, L] int64, the input of the generator
    targets: Targets
    is_masked: Tensor  # [B, K] bool, targets replaced by [MASK]
    logits: Tensor  # [B, K, V], of the generator at the targets
    corrupted_ids: Tensor  # [B, L] int64, the input of the discriminator
    is_replaced: Tensor  # [B, L] bool, the labels of the discriminator
    is_kept: Tensor  # [B, K] bool, targets that are [MASK] in corrupted_ids, not sampled
    is_classified: Tensor  # [B, L] bool, all tokens except padding and those [MASK]s


class ReplacedTokenDetection(nn.Module):
    """Generator MLM loss, discriminator loss and with `sop` the sentence-order loss."""

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
        self.rtd = rtd
        self.special = special
        self.seed = seed
        self._fixed = [fixed]  # no submodule, so neither trained nor saved
        weights = {
            "generator_loss": rtd.generator_weight if rtd.trains_generator else 0.0,
            "discriminator_loss": rtd.discriminator_weight,
            _MLM_LOSS: rtd.mlm_weight if rtd.mlm_share else 0.0,
            "sop_loss": sop.weight if sop else 0.0,
        }
        self.weights = {name: weight for name, weight in weights.items() if weight}
        classes = {"discriminator_loss": 2, "sop_loss": 2}
        self.chance_level = {
            name: math.log(classes.get(name, model.vocab_size)) for name in self.weights
        }
        self.electra = Electra(
            rtd.generator_config(model),
            model,
            is_disentangled=rtd.embedding_sharing == "disentangled" and rtd.trains_generator,
            with_sentence_order=sop is not None,
            with_mlm=rtd.mlm_share > 0,
        )
        if self.generator is not None and rtd.generator == "shared":
            _share_layers(self.generator, self.discriminator)

    @property
    def generator(self) -> Generator | None:
        return self.electra.generator

    @property
    def discriminator(self) -> Discriminator:
        return self.electra.discriminator

    @property
    def lr_multipliers(self) -> dict[str, float] | None:
        """Multiples of the learning rate by parameter name; None if all are 1."""
        rates = {  # by prefix, the first that matches
            "electra.generator.embeddings.": 1.0,
            "electra.generator.": self.rtd.generator_rate,
            "electra.": self.rtd.discriminator_rate,
        }
        if {*rates.values()} == {1.0}:
            return None
        if self.rtd.generator == "shared":  # the shared layers have their first name here
            rates = {"electra.generator.encoder.": self.rtd.discriminator_rate, **rates}
        names = (name for name, _ in self.named_parameters())
        return {name: rates[next(filter(name.startswith, rates))] for name in names}

    def counts(self, batch: Batch) -> dict[str, int]:
        """Counts of predicted tokens, tokens except padding and sequences with an order.

        Computed on the host.
        """
        count = mlm.count_targets(batch, self.rtd.mask_rate, self.special)
        stays_masked = int(share_of(count, self.rtd.mlm_share).sum())
        counts = {
            "generator_loss": int(count.sum()),
            "discriminator_loss": int(batch.attention_mask.sum()) - stays_masked,
            _MLM_LOSS: stays_masked,
            "sop_loss": mlm.count_orders(batch),
        }
        return {name: counts[name] for name in self.weights}

    def corrupt(self, batch: Batch) -> Corruption:
        """Mask the batch and replace targets by generator samples."""
        generator: Any = self.generator or self._fixed[0]
        masked_ids, targets, is_masked, _, logits = mlm.predict(
            generator, batch, self.rtd, self.special, self.seed
        )
        positions = targets.positions
        # The targets are sorted by their noise, so the first ones are a random part.
        kept_count = share_of(targets.weight.sum(1), self.rtd.mlm_share)  # [B]
        index = torch.arange(positions.shape[1], device=positions.device)
        is_kept = index < kept_count[:, None]  # [B, K]
        is_sampled = (targets.weight > 0) & ~is_kept  # [B, K]
        example_id = batch.example_id[:, None].expand_as(positions)
        keys = (self.seed, example_id.flatten(), positions.flatten())
        sampled = sample(logits.flatten(0, 1), self.rtd.temperature, *keys)
        tokens = torch.where(is_sampled, sampled.view_as(positions), targets.labels)
        tokens = tokens.masked_fill(is_kept, self.special.mask)
        corrupted_ids = batch.input_ids.scatter(1, positions, tokens)
        is_text = batch.attention_mask.gather(1, positions)  # [B, K]
        is_classified = batch.attention_mask.scatter(1, positions, is_text & ~is_kept)
        # False for a sampled token that equals the original.
        is_replaced = (corrupted_ids != batch.input_ids) & is_classified
        return Corruption(
            masked_ids,
            targets,
            is_masked,
            logits,
            corrupted_ids,
            is_replaced,
            is_kept,
            is_classified,
        )

    def detect(self, batch: Batch, corruption: Corruption) -> tuple[Tensor, Tensor]:
        """The discriminator's hidden states [B, L, D] and logits [B, L], above 0 = replaced."""
        hidden_states = self.discriminator.encode(
            corruption.corrupted_ids, batch.attention_mask, batch.token_type_ids
        )
        return hidden_states, self.discriminator.discriminator_predictions(hidden_states)

    def forward(self, batch: Batch) -> dict[str, Term]:
        """Loss and metric terms of a batch."""
        corruption = self.corrupt(batch)
        hidden_states, logits = self.detect(batch, corruption)
        return self.terms(batch, corruption, hidden_states, logits)

    def terms(
        self,
        batch: Batch,
        corruption: Corruption,
        hidden_states: Tensor,
        logits: Tensor,
    ) -> dict[str, Term]:
        """Loss and metric terms of a corrupted batch, hidden_states and logits from `detect`."""
        is_replaced = corruption.is_replaced  # [B, L]
        is_classified = corruption.is_classified  # [B, L]
        labels = is_replaced.float()
        nats = F.binary_cross_entropy_with_logits(logits.float(), labels, reduction="none")
        is_detected = (logits.detach() > 0) & is_classified
        true_positives = (is_detected & is_replaced).sum().float()
        count = is_classified.sum()
        replaced_count = is_replaced.sum()
        mlm_terms = self._mlm_terms(corruption, hidden_states) if self.rtd.mlm_share else {}
        return {
            **mlm.prediction_terms(
                corruption.logits, corruption.targets, corruption.is_masked, "generator"
            ),
            "discriminator_loss": Term((nats * is_classified).sum(), count),
            "replaced_fraction": Term(replaced_count.float(), count),
            "discriminator_precision": Term(true_positives, is_detected.sum()),
            "discriminator_recall": Term(true_positives, replaced_count),
            **mlm_terms,
            **mlm.order_terms(self.discriminator.sentence_order, hidden_states, batch),
        }

    def _mlm_terms(self, corruption: Corruption, hidden_states: Tensor) -> dict[str, Term]:
        """MLM loss and accuracy of the discriminator at the tokens that stay [MASK].

        hidden_states [B, L, D].
        """
        most = math.ceil(self.rtd.mlm_share * corruption.is_kept.shape[1])
        is_kept = corruption.is_kept[:, :most]
        positions = corruption.targets.positions[:, :most]
        labels = corruption.targets.labels[:, :most]
        logits = mlm.logits_at(positions, self.discriminator.mlm_logits, hidden_states)
        targets = Targets(positions, is_kept.float(), labels)
        return mlm.prediction_terms(logits, targets, is_kept, "discriminator_mlm")

    def score(self, batch: Batch, unigram: Unigram, detections: Detections) -> dict[str, Term]:
        """Terms of a held-out batch, baselines included; adds the logits to `detections`."""
        corruption = self.corrupt(batch)
        hidden_states, logits = self.detect(batch, corruption)
        detections.add(logits, corruption.is_replaced, corruption.is_classified)
        terms = self.terms(batch, corruption, hidden_states, logits)
        return terms | baseline_terms(corruption.targets, corruption.is_masked, unigram)


def _share_layers(generator: Generator, discriminator: Discriminator) -> None:
    """Make the generator's encoder the first layers of the discriminator's."""
    first = generator.encoder
    encoder = discriminator.encoder
    first.embedding_hidden_mapping_in = encoder.embedding_hidden_mapping_in
    first.albert_layer_groups = encoder.albert_layer_groups[: len(first.albert_layer_groups)]


class PretrainingModule(nn.Module, PretrainingObjective):
    """The type of an objective: a module that implements the contract, without inheriting."""


_REQUIRED = (*Objective.__annotations__, *PretrainingObjective.__annotations__, "counts", "score")


def make_objective(
    config: PretrainConfig,
    special: SpecialIds,
    fixed: Generator | None = None,
) -> PretrainingModule:
    """The objective config.run.objective, initialised with torch's global generator.

    fixed: a generator that is not trained.
    """
    spec = spec_of(config)
    options = spec.groups(config)
    if fixed is not None:
        options["fixed"] = fixed
    build: type[PretrainingModule] = resolve_name(spec.class_path)
    objective = build(
        model=config.model,
        special=special,
        seed=config.training.seed,
        **options,
    )
    missing = [attribute for attribute in _REQUIRED if not hasattr(objective, attribute)]
    assert not missing, f"{spec.class_path} lacks {', '.join(missing)}: see docs/extending.md"
    return objective
