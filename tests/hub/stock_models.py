"""Stock models of three families at toy width, every parameter drawn, and what they compute, to compare ours with.

Sizes are odd and different where they can be. Dimensions: B rows, L length, V vocabulary, D hidden, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from electra_albert.contracts import Batch
from electra_albert.hub.find import ModelFiles
from tests.model.twins import SHAPE, padded_batch, stock

C = 5
_SIZES = {
    "vocab_size": SHAPE.vocab_size,
    "hidden_size": SHAPE.hidden_size,
    "num_hidden_layers": 4,
    "num_attention_heads": SHAPE.num_attention_heads,
    "intermediate_size": SHAPE.intermediate_size,
    "max_position_embeddings": SHAPE.max_position_embeddings,
    "type_vocab_size": 2,
    "initializer_range": SHAPE.initializer_range,
}


def config_of(family: str, **changes: Any) -> Any:
    """The stock configuration of a family: albert, bert, electra, or electra whose embeddings are not projected."""
    from transformers import BertConfig, ElectraConfig

    if family == "albert":
        return stock(SHAPE, **changes)
    options = {**_SIZES, **changes, "attn_implementation": "eager"}
    if family == "bert":
        return BertConfig(**options)
    return ElectraConfig(embedding_size=SHAPE.embedding_size if family == "electra" else SHAPE.hidden_size, **options)


def make(family: str, name: str, config: Any = None, **options: Any) -> Any:
    """The stock model of class `name` in eval mode; `options` go to its class."""
    import transformers

    with torch.random.fork_rng():
        torch.manual_seed(7)
        labels = {"num_labels": C} if name.endswith(("SequenceClassification", "TokenClassification")) else {}
        model = getattr(transformers, name)(config or config_of(family, **labels), **options).eval()
        for parameter in model.parameters():
            if parameter.ndim == 1:
                nn.init.normal_(parameter, mean=0.5, std=0.2)
    return model


def save(model: Any, folder: Path, **options: Any) -> ModelFiles:
    """Its folder, written by stock itself."""
    model.save_pretrained(folder, **options)
    return ModelFiles(folder / "model.safetensors", folder / "config.json", folder)


def batches() -> list[Batch]:
    """One batch under three masks: full rows, rows padded at the end, rows with holes."""
    padded = padded_batch()
    full = padded._replace(attention_mask=torch.ones_like(padded.attention_mask))
    holes = padded._replace(attention_mask=padded.attention_mask & (padded.input_ids % 3 != 1))
    holes.attention_mask[:, 0] = True
    return [full, padded, holes]


def stock_outputs(model: Any, batch: Batch) -> dict[str, Tensor]:
    """The outputs of a stock model of any class under our names."""
    inputs = [batch.input_ids, batch.attention_mask.long(), batch.token_type_ids]
    if type(model).__name__.endswith("MultipleChoice"):
        inputs = [tensor[None] for tensor in inputs]  # [1, B, L]
    names = ("input_ids", "attention_mask", "token_type_ids")
    with torch.no_grad():
        found: Mapping[str, Tensor] = model(**dict(zip(names, inputs, strict=True)))
    renamed = {"prediction_logits": "logits"}
    return {renamed.get(name, name): tensor for name, tensor in found.items() if isinstance(tensor, Tensor)}
