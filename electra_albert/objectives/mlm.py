"""Masked language modelling, 80/10/10, alone or with sentence order. Papers: BERT section 3.1, ALBERT section 3.1.

Dimensions: B batch, L length, K slots a row, M any number of predicted tokens, V vocab, D hidden.
"""

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra_albert.config import MlmConfig, ModelConfig, RtdConfig, SopConfig
from electra_albert.contracts import IGNORED_LABEL, Batch, SpecialIds, Term, UsageError
from electra_albert.model.electra import Discriminator, Generator, initialize_models
from electra_albert.model.heads import SentenceOrderHead
from electra_albert.objectives import masking
from electra_albert.objectives.evaluation import Detections, Unigram, baseline_terms


class Prediction(NamedTuple):
    """Masked inputs, targets and the logits at them."""

    masked_ids: Tensor  # [B, L] int64, the input of the generator
    targets: masking.Targets
    is_shown_masked: Tensor  # [B, K] bool
    hidden_states: Tensor  # [B, L, D]
    logits: Tensor  # [B, K, V] float32, the generator's at the targets


class MaskedLanguageModeling(nn.Module):
    """Masked tokens predicted by `generator`, by default a new one, and, where `sop` is given, sentence order."""

    discriminator: Discriminator | None = None
    rate_scales: dict[str, float] | None = None

    def __init__(
        self,
        model: ModelConfig,
        mlm: MlmConfig,
        special: SpecialIds,
        seed: int,
        sop: SopConfig | None = None,
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        ordinary = model.vocab_size - len(special.never_masked)
        if mlm.random_token_share and ordinary < 2:
            why = f"none of the {ordinary} tokens that are not special can be replaced by another"
            raise UsageError(f"{why}; set --mlm.random_token_share 0 or take a larger vocabulary")
        self.mlm, self.special, self.seed, self.sop = mlm, special, seed, sop
        self.weights, self.chance_level = {"mlm_loss": 1.0}, {"mlm_loss": math.log(model.vocab_size)}
        if sop is not None:
            self.weights["sop_loss"], self.chance_level["sop_loss"] = sop.weight, math.log(2)
        if generator is None:
            generator = Generator(model, with_sentence_order=sop is not None)
            initialize_models(generator)
        self.generator = generator

    def counts(self, batch: Batch) -> dict[str, int]:
        """Predicted tokens, and rows with an order, found on the host."""
        return count_targets(batch, "mlm_loss", self.mlm.mask_rate, self.special, self.sop)

    def corrupt(self, batch: Batch) -> Prediction:
        """Mask the batch and let the model fill it."""
        return predict(self.generator, batch, self.mlm, self.special, self.seed)

    def forward(self, batch: Batch, step: Tensor) -> dict[str, Term]:
        """Loss and metric terms of one batch; `step` is not used, example_id is already new in every epoch."""
        return self.terms(batch, self.corrupt(batch))

    def terms(self, batch: Batch, prediction: Prediction) -> dict[str, Term]:
        """Loss and metric terms of a batch that was masked and filled."""
        terms = prediction_terms(prediction.logits, prediction.targets, prediction.is_shown_masked, "mlm")
        return terms | order_terms(self.generator.sentence_order, prediction.hidden_states, batch)

    def score(self, batch: Batch, unigram: Unigram, detections: Detections) -> dict[str, Term]:
        """All terms of a held-out batch and of its baselines; there is nothing to add to `detections`."""
        prediction = self.corrupt(batch)
        return self.terms(batch, prediction) | baseline_terms(prediction.targets, prediction.is_shown_masked, unigram)


def predict(
    generator: Generator, batch: Batch, options: MlmConfig | RtdConfig, special: SpecialIds, seed: int
) -> Prediction:
    """Mask the batch and let the generator fill it. Draws are keyed by batch.example_id."""
    ids, keys = batch.input_ids, (seed, batch.example_id)
    is_maskable = masking.maskable(ids, batch.attention_mask, special)
    targets = masking.choose_targets(ids, is_maskable, options.mask_rate, *keys)
    others = None
    if isinstance(options, MlmConfig) and options.random_token_share:
        others = masking.other_tokens(targets, special, generator.config.vocab_size, *keys), options.random_token_share
    shown = masking.show_masked(ids, targets, special.mask, options.mask_token_share, *keys, others)
    masked_ids, is_shown_masked = shown
    hidden_states = generator(masked_ids, batch.attention_mask, batch.token_type_ids)  # [B, L, D]
    index = targets.positions[:, :, None].expand(-1, -1, hidden_states.shape[-1])
    logits = generator.logits(hidden_states.gather(1, index)).float()  # [B, K, V]
    return Prediction(masked_ids, targets, is_shown_masked, hidden_states, logits)


def count_targets(
    batch: Batch, name: str, mask_rate: float, special: SpecialIds, sop: SopConfig | None
) -> dict[str, int]:
    """Tokens that `predict` chooses, under `name`, and rows with an order where `sop` is given, found on the host."""
    is_maskable = masking.maskable(batch.input_ids, batch.attention_mask, special)
    counts = {name: int(masking.quota(is_maskable, mask_rate).sum())}
    return counts if sop is None else counts | {"sop_loss": int((batch.sentence_order_label != IGNORED_LABEL).sum())}


def prediction_terms(logits: Tensor, targets: masking.Targets, is_shown_masked: Tensor, name: str) -> dict[str, Term]:
    """Cross-entropy over the targets, and how often the top prediction is right at [MASK]; logits float32 [B, K, V]."""
    weight, labels = targets.weight, targets.labels
    nats = CrossEntropy.apply(logits.flatten(0, 1), labels.flatten()).view_as(weight)  # [B, K]
    best = logits.detach().max(-1).indices  # [B, K]; on the CPU twice as fast as argmax, which finds the same
    is_right = (best == labels) & is_shown_masked
    return {
        f"{name}_loss": Term((nats * weight).sum(), weight.sum().long()),
        f"{name}_accuracy": Term(is_right.sum().float(), is_shown_masked.sum()),
    }


class CrossEntropy(torch.autograd.Function):
    """Nats of each label, float [M], from logits any float [M, V], which alone are kept, and labels int64 [M].

    Computes the softmax again where PyTorch's own keeps a log-softmax and fills a gradient with zeros first.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        ctx.save_for_backward(logits, labels)
        return -logits.log_softmax(-1).gather(1, labels[:, None]).squeeze(1)  # [M]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,), (logits, labels) = gradients, ctx.saved_tensors
        error = logits.softmax(-1)  # [M, V]
        error.scatter_add_(1, labels[:, None], error.new_full((1, 1), -1.0).expand(len(labels), 1))
        return error.mul_(gradient[:, None]), None


def order_terms(head: SentenceOrderHead | None, hidden_states: Tensor, batch: Batch) -> dict[str, Term]:
    """Loss and metrics of rows with an order, none without a head; a batch without such rows gives sums of 0."""
    if head is None:
        return {}
    logits, labels = head(hidden_states).float(), batch.sentence_order_label  # [B, 2], [B]
    nats = F.cross_entropy(logits, labels, ignore_index=IGNORED_LABEL, reduction="sum")
    rows = (labels != IGNORED_LABEL).sum()
    is_right = logits.detach().argmax(-1) == labels  # an ignored label is no class, so its row is never right
    return {
        "sop_loss": Term(nats, rows),
        "sop_accuracy": Term(is_right.sum().float(), rows),
        "swapped_fraction": Term((labels == 1).sum().float(), rows),
    }
