"""Electric: noise-contrastive estimation of token energies.

The discriminator's head returns the energy E(x, t) of each token, and p̂(x_t | all others) =
exp(-E(x, t)) is trained without its normalisation: a logistic regression with the log odds
log(k q) - log((n - k) p̂) separates k noise tokens, drawn from q, from the n - k others, tokens of
the text. Its optimum is p̂ = p (Gutmann and Hyvärinen 2010).
Paper: Clark et al. 2020 (Electric), section 2.
Dimensions: B batch, L length, D hidden, K = masking.max_targets.
"""

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra_albert.config.model import ModelConfig
from electra_albert.config.objectives import RtdConfig
from electra_albert.contracts import Batch, SpecialIds, Term
from electra_albert.objectives import ElectricConfig
from electra_albert.objectives.evaluation import Detections, Unigram
from electra_albert.objectives.masking import mask_tokens
from electra_albert.objectives.rtd import Corruption, ReplacedTokenDetection


class Electric(ReplacedTokenDetection):
    """The generator's MLM loss, and the noise-contrastive loss over the selected tokens.

    The latter is discriminator_loss. Each selected token is replaced by a sample of the generator
    with probability noise_share, or stays.
    """

    # Differs from Electric: its two-tower model gives q of every token, so that n counts all
    # tokens. The generator, a masked LM, gives q = softmax(logits / temperature) of the tokens that
    # it does not see; n counts these.

    def __init__(
        self,
        model: ModelConfig,
        rtd: RtdConfig,
        electric: ElectricConfig,
        special: SpecialIds,
        seed: int,
    ) -> None:
        rtd = replace(rtd, mask_token_share=1.0)
        super().__init__(model, rtd, special, seed)
        self.noise_share = electric.noise_share
        head = self.discriminator.discriminator_predictions
        head.has_energies = True
        # With random weights, where q is about 1 / V, the log odds of noise are 0, as the logits of
        # `rtd`.
        odds = model.vocab_size * (1 - self.noise_share) / self.noise_share
        nn.init.constant_(head.dense_prediction.bias, math.log(odds))

    def counts(self, batch: Batch) -> dict[str, int]:
        """As in `rtd`, but only selected tokens are classified."""
        counts = super().counts(batch)
        return counts | {"discriminator_loss": counts["generator_loss"]}

    def corrupt(self, batch: Batch) -> Corruption:
        """As in `rtd`, but is_kept are targets that stay.

        is_replaced are all other targets, also those where the sample is equal.
        """
        corruption = super().corrupt(batch)
        targets = corruption.targets
        positions = targets.positions
        is_used = targets.weight > 0
        # All targets are [MASK] for the generator, so the draws of their kind are free.
        _, is_noise = mask_tokens(
            batch.input_ids,
            targets,
            self.special.mask,
            self.noise_share,
            self.seed,
            batch.example_id,
        )  # [B, K]
        sampled = corruption.corrupted_ids.gather(1, positions)
        tokens = torch.where(is_noise, sampled, targets.labels)
        nowhere = torch.zeros_like(batch.attention_mask)
        return corruption._replace(
            corrupted_ids=batch.input_ids.scatter(1, positions, tokens),
            is_replaced=nowhere.scatter(1, positions, is_noise),
            is_kept=is_used & ~is_noise,
            is_classified=nowhere.scatter(1, positions, is_used),
        )

    def detect(self, batch: Batch, corruption: Corruption) -> tuple[Tensor, Tensor]:
        """The discriminator's hidden states [B, L, D] and the log odds of noise [B, L].

        The log odds of tokens that are not selected are 0.
        """
        hidden_states, energies = super().detect(batch, corruption)
        positions = corruption.targets.positions
        tokens = corruption.corrupted_ids.gather(1, positions)  # [B, K]
        logits = corruption.logits.detach() / self.rtd.temperature
        logits = logits.flatten(0, 1)
        nats = F.cross_entropy(logits, tokens.flatten(), reduction="none")
        log_q = -nats.view_as(tokens)  # [B, K]
        # log(k q) - log((n - k) p̂), with k / n = noise_share and the energies -log p̂
        prior = math.log(self.noise_share / (1 - self.noise_share))
        odds = energies.gather(1, positions) + log_q + prior
        return hidden_states, torch.zeros_like(energies).scatter(1, positions, odds)

    def score(self, batch: Batch, unigram: Unigram, detections: Detections) -> dict[str, Term]:
        """As in `rtd`, without detections.

        Noise may equal the text, so the ROC-AUC of p̂ = p falls with a better q.
        """
        return super().score(batch, unigram, Detections())
