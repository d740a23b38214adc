"""Generator and discriminator composed from stock transformers classes, with our weights.

Dimensions: B batch, L length, K = masking.max_targets, V vocab, D hidden.
"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra_albert.config.model import ModelConfig
from electra_albert.contracts import IGNORED_LABEL, Batch, UserError
from electra_albert.hub.formats import to_stock
from electra_albert.objectives.masking import choose_targets, mask_tokens, maskable
from electra_albert.objectives.rtd import ReplacedTokenDetection

ATTENTIONS: tuple[str, ...] = ("sdpa", "eager")
# Relative, in float32: the effect of another order of additions. Other weights or a lost tie change
# far more.
LOSS_TOLERANCE = 1e-5
GRADIENT_TOLERANCE = 1e-4
_HEAD = "discriminator_predictions."
_OWN_FIELDS = ("initialization", "attention", "attention_options")  # not in AlbertConfig


def albert_config(model: ModelConfig, **changes: Any) -> Any:
    """The model's shape as transformers' AlbertConfig."""
    from transformers import AlbertConfig

    shape = {name: value for name, value in asdict(model).items() if name not in _OWN_FIELDS}
    return AlbertConfig(**{**shape, **changes})


def write_stock_model(
    model: ModelConfig, tokenizer: Any, folder: Path, seed: int, **changes: Any
) -> None:
    """Write AlbertForMaskedLM with random weights, and the tokenizer, as a stock folder."""
    from transformers import AlbertForMaskedLM

    torch.manual_seed(seed)
    AlbertForMaskedLM(albert_config(model, **changes)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


class StockPair(nn.Module):
    """AlbertForMaskedLM and AlbertModel with ELECTRA's head, which share one embeddings module,
    with our weights.

    Plain: logits at every position, as AlbertForMaskedLM computes them when it gets labels. Tuned:
    logits at the masked positions only.
    """

    def __init__(self, ours: ReplacedTokenDetection, *, is_tuned: bool) -> None:
        from transformers import AlbertForMaskedLM, AlbertModel
        from transformers.models.electra.modeling_electra import ElectraDiscriminatorPredictions

        super().__init__()
        self.rtd, self.special, self.seed, self.weights = (
            ours.rtd,
            ours.special,
            ours.seed,
            ours.weights,
        )
        self.is_tuned = is_tuned
        assert ours.generator is not None
        discriminator = albert_config(ours.discriminator.config)
        self.generator = AlbertForMaskedLM(albert_config(ours.generator.config))
        self.discriminator = AlbertModel(discriminator, add_pooling_layer=False)
        self.discriminator.embeddings = self.generator.albert.embeddings
        self.discriminator_predictions = ElectraDiscriminatorPredictions(discriminator)
        self._copy_weights(
            to_stock(ours.generator.state_dict()), to_stock(ours.discriminator.state_dict())
        )

    def _copy_weights(
        self, generator: Mapping[str, Tensor], discriminator: Mapping[str, Tensor]
    ) -> None:
        self.generator.tie_weights()
        left = self.generator.load_state_dict(generator, strict=False)
        assert not left.unexpected_keys, left
        assert all(name.startswith("predictions.decoder.") for name in left.missing_keys), (
            left
        )  # tied
        for module, prefix in (
            (self.discriminator, "albert."),
            (self.discriminator_predictions, _HEAD),
        ):
            own = {
                name: tensor for name, tensor in discriminator.items() if name.startswith(prefix)
            }
            module.load_state_dict(
                {name.removeprefix(prefix): tensor for name, tensor in own.items()}
            )

    @property
    def lr_multipliers(self) -> dict[str, float]:
        """Learning rate factor of each parameter by name; 1 for the shared embeddings."""
        scales = {"generator.albert.embeddings.": 1.0, "generator.": self.rtd.generator_rate}
        return {
            name: next(
                (scales[start] for start in scales if name.startswith(start)),
                self.rtd.discriminator_rate,
            )
            for name, _ in self.named_parameters()
        }

    def use_attention(self, kind: str) -> None:
        """Switch both networks to one of ATTENTIONS."""
        self.attention = kind
        self.generator.set_attn_implementation(kind)
        self.discriminator.set_attn_implementation(kind)

    def forward(self, batch: Batch, corrupted_ids: Tensor | None = None) -> dict[str, Tensor]:
        """Both mean losses, float32 []. corrupted_ids int64 [B, L], if given, replace the
        generator's samples.
        """
        ids, mask = batch.input_ids, batch.attention_mask
        is_maskable = maskable(ids, mask, self.special)
        targets = choose_targets(ids, is_maskable, self.rtd.mask_rate, self.seed, batch.example_id)
        masked_ids, _ = mask_tokens(
            ids, targets, self.special.mask, self.rtd.mask_token_share, self.seed, batch.example_id
        )
        labels = targets.labels.masked_fill(targets.weight == 0, IGNORED_LABEL)  # [B, K]
        generator_loss, logits = self._predict(batch, masked_ids, targets.positions, labels)
        if corrupted_ids is None:
            drawn = draw(logits, self.rtd.temperature)  # [B, K]
            corrupted_ids = ids.scatter(
                1, targets.positions, torch.where(targets.weight > 0, drawn, targets.labels)
            )
        hidden_states = self.discriminator(
            corrupted_ids, mask, batch.token_type_ids
        ).last_hidden_state
        detected = self.discriminator_predictions(hidden_states)  # [B, L]
        is_replaced = (corrupted_ids != ids).float()
        nats = F.binary_cross_entropy_with_logits(detected.float(), is_replaced, reduction="none")
        return {
            "generator_loss": generator_loss,
            "discriminator_loss": (nats * mask).sum() / mask.sum(),
        }

    def _predict(
        self, batch: Batch, ids: Tensor, positions: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The generator's loss and its logits [B, K, V] at the positions [B, K]."""
        given = (ids, batch.attention_mask, batch.token_type_ids)
        if not self.is_tuned:
            everywhere = torch.full_like(ids, IGNORED_LABEL).scatter(1, positions, labels)  # [B, L]
            output = self.generator(*given, labels=everywhere)
            row = torch.arange(len(ids), device=ids.device)[:, None]
            return output.loss, output.logits.detach()[row, positions]
        hidden_states = self.generator.albert(*given).last_hidden_state
        index = positions[:, :, None].expand(-1, -1, hidden_states.shape[-1])
        logits = self.generator.predictions(hidden_states.gather(1, index))  # [B, K, V]
        loss = F.cross_entropy(
            logits.float().flatten(0, 1), labels.flatten(), ignore_index=IGNORED_LABEL
        )
        return loss, logits.detach()


def draw(logits: Tensor, temperature: float) -> Tensor:
    """Sample a token from softmax(logits / temperature) by Gumbel noise. [..., V] any float to
    [...] int64.
    """
    scores = logits.float() / temperature
    return (scores - torch.empty_like(scores).exponential_().log()).argmax(-1)


def check_same_function(ours: ReplacedTokenDetection, stock: StockPair, batch: Batch) -> None:
    """Raise UserError unless both give the same losses and gradient norms on `batch` with the same
    corruption.

    Computes in float32; dropout must be off. A lost weight tie shows only in the norms, not in the
    losses.
    """
    corruption = ours.corrupt(batch)
    terms = ours.terms(batch, corruption, *ours.detect(batch, corruption))
    found = _measures(ours, {name: terms[name].sum / terms[name].count for name in ours.weights})
    wanted = _measures(stock, stock(batch, corruption.corrupted_ids))
    for name, (value, tolerance) in found.items():
        expected, _ = wanted[name]
        if not abs(value - expected) <= tolerance * abs(expected):
            raise UserError(
                f"ours and stock do not compute the same: {name} is {value:.7g} (ours), "
                f"{expected:.7g} (stock); "
                "install the versions that requirements.txt pins"
            )


def _measures(module: nn.Module, losses: Mapping[str, Tensor]) -> dict[str, tuple[float, float]]:
    """Values and their tolerances: each loss, and the norm of the gradient accumulated up to it.

    Unweighted: with the loss weights of training, the generator's part would vanish in the norm.
    """
    measures = {}
    for name, loss in losses.items():
        measures[name] = (float(loss.detach()), LOSS_TOLERANCE)
        torch.autograd.backward(loss)
        norm = nn.utils.get_total_norm([p.grad for p in module.parameters() if p.grad is not None])
        measures[f"gradient norm after {name}"] = (float(norm), GRADIENT_TOLERANCE)
    module.zero_grad(set_to_none=True)
    return measures
