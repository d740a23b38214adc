"""Masked language modelling, 80/10/10, alone or with sentence order.

Papers: BERT section 3.1, ALBERT section 3.1.
Dimensions: B batch, L length, K = masking.max_targets, M predicted tokens, V vocab, D hidden.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra_albert.config.model import ModelConfig
from electra_albert.config.objectives import MlmConfig, RtdConfig, SopConfig
from electra_albert.contracts import IGNORED_LABEL, Batch, SpecialIds, Term, UsageError
from electra_albert.model.electra import Discriminator, Generator, initialize_models
from electra_albert.model.encoder import SentenceOrderHead
from electra_albert.objectives import masking
from electra_albert.objectives.evaluation import Detections, Unigram, baseline_terms


class Prediction(NamedTuple):
    """Masked inputs, targets and MLM logits."""

    masked_ids: Tensor  # [B, L] int64, the input of the generator
    targets: masking.Targets
    is_masked: Tensor  # [B, K] bool, targets replaced by [MASK]
    hidden_states: Tensor  # [B, L, D]
    logits: Tensor  # [B, K, V] float32, at the targets


class MaskedLanguageModeling(nn.Module):
    """MLM loss of `generator`, by default a new one, and with `sop` its sentence-order loss."""

    discriminator: Discriminator | None = None
    lr_multipliers: dict[str, float] | None = None

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
            raise UsageError(
                "random tokens need 2 tokens that are not special, "
                f"the vocabulary has {ordinary}; "
                "set --mlm.random_token_share 0 or use a larger vocabulary"
            )
        self.mlm = mlm
        self.special = special
        self.seed = seed
        self.weights = {"mlm_loss": 1.0}
        self.chance_level = {"mlm_loss": math.log(model.vocab_size)}
        if sop is not None:
            self.weights["sop_loss"] = sop.weight
            self.chance_level["sop_loss"] = math.log(2)
        if generator is None:
            generator = Generator(model, with_sentence_order=sop is not None)
            initialize_models(generator)
        self.generator = generator

    def counts(self, batch: Batch) -> dict[str, int]:
        """Counts of predicted tokens and of sequences with an order, computed on the host."""
        count = count_targets(batch, self.mlm.mask_rate, self.special)
        counts = {"mlm_loss": int(count.sum()), "sop_loss": count_orders(batch)}
        return {name: count for name, count in counts.items() if name in self.weights}

    def corrupt(self, batch: Batch) -> Prediction:
        """Mask the batch and predict the masked tokens."""
        return predict(self.generator, batch, self.mlm, self.special, self.seed)

    def forward(self, batch: Batch) -> dict[str, Term]:
        """Loss and metric terms of a batch."""
        return self.terms(batch, self.corrupt(batch))

    def terms(self, batch: Batch, prediction: Prediction) -> dict[str, Term]:
        """Loss and metric terms of a batch and its predictions."""
        terms = prediction_terms(prediction.logits, prediction.targets, prediction.is_masked, "mlm")
        return terms | order_terms(self.generator.sentence_order, prediction.hidden_states, batch)

    def score(self, batch: Batch, unigram: Unigram, detections: Detections) -> dict[str, Term]:
        """Terms of a held-out batch, baselines included; `detections` is unused."""
        prediction = self.corrupt(batch)
        baselines = baseline_terms(prediction.targets, prediction.is_masked, unigram)
        return self.terms(batch, prediction) | baselines


def predict(
    generator: Generator,
    batch: Batch,
    options: MlmConfig | RtdConfig,
    special: SpecialIds,
    seed: int,
) -> Prediction:
    """Mask a batch and predict the masked tokens."""
    vocab_size = generator.config.vocab_size
    masked_ids, targets, is_masked = masking.mask(batch, vocab_size, options, special, seed)
    hidden_states = generator(masked_ids, batch.attention_mask, batch.token_type_ids)
    logits = logits_at(targets.positions, generator.logits, hidden_states)
    return Prediction(masked_ids, targets, is_masked, hidden_states, logits)


def logits_at(
    positions: Tensor,
    logits: Callable[[Tensor], Tensor],
    hidden_states: Tensor,
) -> Tensor:
    """MLM logits float32 [B, K, V] by a model's `logits` of hidden_states [B, L, D].

    positions int64 [B, K].
    """
    return logits(hidden_states.take_along_dim(positions[:, :, None], 1)).float()


def count_targets(batch: Batch, mask_rate: float, special: SpecialIds) -> Tensor:
    """Number of the targets of `mask` in each sequence, int64 [B]."""
    is_maskable = masking.maskable(batch.input_ids, batch.attention_mask, special)
    return masking.target_count(is_maskable, mask_rate)


def count_orders(batch: Batch) -> int:
    """Number of the sequences with an order."""
    return int((batch.sentence_order_label != IGNORED_LABEL).sum())


def prediction_terms(
    logits: Tensor,
    targets: masking.Targets,
    is_masked: Tensor,
    name: str,
) -> dict[str, Term]:
    """Cross-entropy over all targets, and accuracy over the targets at [MASK].

    logits float32 [B, K, V].
    """
    weight = targets.weight
    cross_entropy: Callable[[Tensor, Tensor], Tensor] = CrossEntropy.apply
    nats = cross_entropy(logits.flatten(0, 1), targets.labels.flatten()).view_as(weight)  # [B, K]
    # On the CPU twice as fast as argmax, with the same result.
    best = logits.detach().max(-1).indices  # [B, K]
    is_correct = (best == targets.labels) & is_masked
    return {
        f"{name}_loss": Term((nats * weight).sum(), weight.sum().long()),
        f"{name}_accuracy": Term(is_correct.sum().float(), is_masked.sum()),
    }


class CrossEntropy(torch.autograd.Function):
    """Cross-entropy in nats, float [M], of logits any float [M, V] and labels int64 [M].

    Saves memory: keeps only the logits and recomputes the softmax; PyTorch's keeps the log-softmax.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        ctx.save_for_backward(logits, labels)
        log_p = logits.log_softmax(-1)  # [M, V]
        return -log_p.gather(1, labels[:, None]).squeeze(1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        logits, labels = ctx.saved_tensors
        index = labels[:, None]
        error = logits.softmax(-1)  # [M, V]
        if torch.compiler.is_compiling():  # fused with the softmax, unlike a scatter
            token = torch.arange(error.shape[1], device=error.device)
            error = error - (index == token).to(error.dtype)
        else:
            minus_one = error.new_full((1, 1), -1.0)
            error.scatter_add_(1, index, minus_one.expand_as(index))
        return error.mul_(gradients[0][:, None]), None


def order_terms(
    head: SentenceOrderHead | None,
    hidden_states: Tensor,
    batch: Batch,
) -> dict[str, Term]:
    """Sentence-order loss and metrics over the sequences with an order; empty without a head."""
    if head is None:
        return {}
    logits = head(hidden_states).float()  # [B, 2]
    labels = batch.sentence_order_label
    nats = F.cross_entropy(logits, labels, ignore_index=IGNORED_LABEL, reduction="sum")
    count = (labels != IGNORED_LABEL).sum()
    is_correct = logits.detach().argmax(-1) == labels  # never true for IGNORED_LABEL
    return {
        "sop_loss": Term(nats, count),
        "sop_accuracy": Term(is_correct.sum().float(), count),
        "swapped_fraction": Term((labels == 1).sum().float(), count),
    }
