"""Untrained models of a few thousand numbers that rewrite text, for any tokenizer."""

from __future__ import annotations

from typing import Any

import torch

from electra_albert.config import ModelConfig, RtdConfig
from electra_albert.inference.rewrite import Rewriter
from electra_albert.objectives.masking import SpecialIds
from electra_albert.objectives.rtd import ReplacedTokenDetection

SEED, RATE, LONGEST = 7, 0.15, 61
TALE = "The quiet  Owl crossed the river, and Every old cat found a LAMP near the station."


def make_objective(tokenizer: Any) -> ReplacedTokenDetection:
    """Untrained models with a row for each of the tokenizer's pieces."""
    model = ModelConfig(
        vocab_size=len(tokenizer),
        embedding_size=11,
        hidden_size=28,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=37,
        max_position_embeddings=LONGEST,
        initialization="normal",
    )
    special = SpecialIds(tokenizer.mask_token_id, tuple(tokenizer.all_special_ids))
    config = RtdConfig(mask_rate=RATE, mask_token_share=1.0, generator_size=0.5)
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        return ReplacedTokenDetection(model, config, special, SEED).eval()


def make_rewriter(objective: ReplacedTokenDetection, tokenizer: Any) -> Rewriter:
    electra = objective.electra
    return Rewriter(electra.generator, electra.discriminator, tokenizer, RATE, 1.0, SEED)
