"""The baseline of the benchmark: the same generator and discriminator, composed from stock transformers classes.

Dimensions: B batch, L length, K slots a row, V vocab, D hidden.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra_albert.config import ModelConfig
from electra_albert.contracts import IGNORED_LABEL, Batch, UserError
from electra_albert.hub.config import stock_config
from electra_albert.hub.names import to_stock
from electra_albert.objectives.masking import Targets, choose_targets, maskable, show_masked
from electra_albert.objectives.rtd import ReplacedTokenDetection

# Relative, in float32: what another order of additions may change. Other weights or a lost tie change far more.
LOSS_TOLERANCE = 1e-5
GRADIENT_TOLERANCE = 1e-4
_SPECIAL_IDS = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
_HEAD = "discriminator_predictions."
_FUSED_ACTIVATION = {"gelu_new": "gelu_pytorch_tanh"}  # transformers' one-kernel name for the same function


class StockPair(nn.Module):
    """AlbertForMaskedLM and AlbertModel with ELECTRA's head on one embeddings module, holding our weights.

    Plain, logits are computed at every position, as AlbertForMaskedLM does where it is given labels. Tuned, they are
    computed at the masked positions only, and the activation is transformers' fused one.
    """

    def __init__(self, ours: ReplacedTokenDetection, *, is_tuned: bool) -> None:
        from transformers import AlbertForMaskedLM, AlbertModel
        from transformers.models.electra.modeling_electra import ElectraDiscriminatorPredictions

        super().__init__()
        self.rtd, self.special, self.seed, self.weights = ours.rtd, ours.special, ours.seed, ours.weights
        self.is_tuned = is_tuned
        electra = ours.electra
        config = _stock_config(electra.discriminator.config, is_tuned)
        self.generator = AlbertForMaskedLM(_stock_config(electra.generator.config, is_tuned))
        self.discriminator = AlbertModel(config, add_pooling_layer=False)
        self.discriminator.embeddings = self.generator.albert.embeddings
        self.discriminator_predictions = ElectraDiscriminatorPredictions(config)
        self._take_weights(to_stock(electra.generator.state_dict()), to_stock(electra.discriminator.state_dict()))

    def _take_weights(self, generator: Mapping[str, Tensor], discriminator: Mapping[str, Tensor]) -> None:
        self.generator.tie_weights()
        left = self.generator.load_state_dict(generator, strict=False)
        tied = {"predictions.decoder.weight", "predictions.decoder.bias"}
        assert not left.unexpected_keys, left
        assert set(left.missing_keys) <= tied, left
        body = {name.removeprefix("albert."): t for name, t in discriminator.items() if not name.startswith(_HEAD)}
        head = {name.removeprefix(_HEAD): t for name, t in discriminator.items() if name.startswith(_HEAD)}
        self.discriminator.load_state_dict(body)
        self.discriminator_predictions.load_state_dict(head)

    @property
    def rate_scales(self) -> dict[str, float]:
        """What each parameter's learning rate is multiplied with, by name: as ours, the shared tables by one."""
        generator, discriminator = self.rtd.generator_rate, self.rtd.discriminator_rate
        own = {"generator.albert.embeddings.": 1.0, "generator.": generator, "discriminator": discriminator}
        return {
            name: next(rate for start, rate in own.items() if name.startswith(start))
            for name, _ in self.named_parameters()
        }

    def use_attention(self, kind: str) -> None:
        """Switch both networks to one of ATTENTIONS."""
        self.generator.set_attn_implementation(kind)
        self.discriminator.set_attn_implementation(kind)

    def forward(self, batch: Batch, corrupted_ids: Tensor | None = None) -> dict[str, Tensor]:
        """Both mean losses, float32 []. The discriminator sees corrupted_ids int64 [B, L] where they are given.

        Masking is ours, drawn by the same keys; what the generator fills in is drawn by torch's own stream.
        """
        ids, mask = batch.input_ids, batch.attention_mask
        is_maskable = maskable(ids, mask, self.special)
        targets = choose_targets(ids, is_maskable, self.rtd.mask_rate, self.seed, batch.example_id)
        masked_ids, _ = show_masked(
            ids, targets, self.special.mask, self.rtd.mask_token_share, self.seed, batch.example_id
        )
        predict = self._predict_targets if self.is_tuned else self._predict_everywhere
        generator_loss, logits = predict(batch, masked_ids, targets)
        if corrupted_ids is None:
            drawn = draw(logits, self.rtd.temperature)  # [B, K]
            corrupted_ids = ids.scatter(1, targets.positions, torch.where(targets.weight > 0, drawn, targets.labels))
        hidden_states = self.discriminator(corrupted_ids, mask, batch.token_type_ids).last_hidden_state
        detected = self.discriminator_predictions(hidden_states)  # [B, L]
        is_replaced = (corrupted_ids != ids).float()
        nats = F.binary_cross_entropy_with_logits(detected.float(), is_replaced, reduction="none")
        return {"generator_loss": generator_loss, "discriminator_loss": (nats * mask).sum() / mask.sum()}

    def _predict_everywhere(self, batch: Batch, masked_ids: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
        """The loss and the logits [B, K, V] at the targets, by AlbertForMaskedLM as it comes."""
        shown = targets.labels.masked_fill(targets.weight == 0, IGNORED_LABEL)
        labels = torch.full_like(masked_ids, IGNORED_LABEL).scatter(1, targets.positions, shown)  # [B, L]
        output = self.generator(masked_ids, batch.attention_mask, batch.token_type_ids, labels=labels)
        row = torch.arange(len(masked_ids), device=masked_ids.device)[:, None]
        return output.loss, output.logits.detach()[row, targets.positions]  # [B, K, V]

    def _predict_targets(self, batch: Batch, masked_ids: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
        """The same from the hidden states at the targets alone."""
        output = self.generator.albert(masked_ids, batch.attention_mask, batch.token_type_ids)
        hidden_states = output.last_hidden_state
        index = targets.positions[:, :, None].expand(-1, -1, hidden_states.shape[-1])
        logits = self.generator.predictions(hidden_states.gather(1, index))  # [B, K, V]
        labels = targets.labels.masked_fill(targets.weight == 0, IGNORED_LABEL)
        loss = F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), ignore_index=IGNORED_LABEL)
        return loss, logits.detach()


def draw(logits: Tensor, temperature: float) -> Tensor:
    """A token from softmax(logits / temperature) by one Gumbel noise a score. [..., V] any float to [...] int64."""
    scores = logits.float() / temperature
    return (scores - torch.empty_like(scores).exponential_().log()).argmax(-1)


def _stock_config(config: ModelConfig, is_tuned: bool) -> Any:
    from transformers import AlbertConfig

    contents = stock_config(config, "AlbertForMaskedLM", _SPECIAL_IDS)
    if is_tuned:
        contents["hidden_act"] = _FUSED_ACTIVATION.get(config.hidden_act, config.hidden_act)
    return AlbertConfig.from_dict(contents)


def check_same_function(ours: ReplacedTokenDetection, stock: StockPair, batch: Batch) -> None:
    """UserError unless both give the same losses and the same gradient norms on `batch` with the same corruption.

    In float32; dropout must be off. The norms tell a lost tie, which the losses alone do not.
    """
    corruption = ours.corrupt(batch)
    terms = ours.terms(batch, corruption, ours.detect(batch, corruption))
    found = _measures(ours, {name: terms[name].sum / terms[name].count for name in ours.weights})
    wanted = _measures(stock, stock(batch, corruption.corrupted_ids))
    for name, (value, tolerance) in found.items():
        expected, _ = wanted[name]
        if not abs(value - expected) <= tolerance * abs(expected):
            raise UserError(
                f"ours and stock do not compute the same: {name} is {value:.7g} here, {expected:.7g} there; "
                "no ratio is printed: install the versions that requirements.txt pins"
            )


def _measures(module: nn.Module, losses: Mapping[str, Tensor]) -> dict[str, tuple[float, float]]:
    """Values and their tolerances: each loss, and the norm of the gradient that has come together with it.

    Added up unweighted: under the weights of training the generator's part would not show in the norm.
    """
    measures = {}
    for name, loss in losses.items():
        measures[name] = (float(loss.detach()), LOSS_TOLERANCE)
        loss.backward()
        norm = nn.utils.get_total_norm([p.grad for p in module.parameters() if p.grad is not None])
        measures[f"gradient norm after {name}"] = (float(norm), GRADIENT_TOLERANCE)
    module.zero_grad(set_to_none=True)
    return measures
