"""Models with modern blocks as stock ModernBERT, which neither shares nor factorises.

Shared blocks are repeated, and the projection E to D is multiplied into the table. The MLM head has
E features, stock's D: they are repeated, which LayerNorm does not change, and only the first E of
them are multiplied by the table.
Dimensions: V vocab, E embedding, D hidden.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from electra_albert.config.model import ModelConfig
from electra_albert.contracts import CheckpointError
from electra_albert.hub.onnx import INPUTS, Model, outputs, probe, quiet, require_close
from electra_albert.model.attention import ROTARY_BASE
from electra_albert.model.electra import Discriminator, Generator
from electra_albert.model.encoder import EncoderModel
from electra_albert.tokenization.tokenizer import save_tokenizer

MODERNBERT = "modernbert"  # a file format, as onnx
_SIZES = "vocab_size hidden_size intermediate_size num_attention_heads max_position_embeddings"
_BIASES = "norm_bias attention_bias mlp_bias classifier_bias"
_ROLES = ("pad_token_id", "cls_token_id", "sep_token_id")
_CHECKED_LENGTH = 24
CLASSES: dict[type, tuple[str, str]] = {  # by our class: the stock one, and our head's name
    EncoderModel: ("ModernBertModel", ""),
    Generator: ("ModernBertForMaskedLM", "predictions"),
    Discriminator: ("ModernBertForTokenClassification", "discriminator_predictions"),
}


def to_modernbert(model: Model, tokenizer: Any) -> Any:
    """The stock model of an encoder, a generator or a discriminator, in eval mode."""
    import transformers

    name, head_name = CLASSES[type(model)]
    config = model.config
    blocks: list[Any] = []
    groups: Any = model.encoder.albert_layer_groups
    for group in groups:
        blocks += [*group.albert_layers] * (config.num_hidden_layers // config.num_hidden_groups)
    with quiet():
        stock = getattr(transformers, name)(_stock_config(name, config, tokenizer, len(blocks)))
    body = getattr(stock, "model", stock)
    projection, norm = model.encoder.embedding_hidden_mapping_in
    pairs = [(body.embeddings.norm, norm)]
    next_norms = [*(layer.attn_norm for layer in body.layers[1:]), body.final_norm]
    for layer, next_norm, block in zip(body.layers, next_norms, blocks, strict=True):
        pairs += [
            (layer.attn.Wqkv, block.attention.qkv),
            (layer.attn.Wo, block.attention.dense),
            (layer.mlp_norm, block.attention.LayerNorm),
            (layer.mlp.Wi, block.ffn),
            (layer.mlp.Wo, block.ffn_output),
            (next_norm, block.full_layer_layer_norm),
        ]
    if head_name:
        head: Any = model.get_submodule(head_name)
        pairs += [(stock.head.dense, head.dense), (stock.head.norm, head.LayerNorm)]
    if isinstance(model, Discriminator):
        pairs.append((stock.classifier, head.dense_prediction))
    table = model.embeddings.table
    stock.to(table.dtype)
    for theirs, ours in pairs:
        times = len(theirs.weight) // len(ours.weight)
        state = ours.state_dict().items()
        theirs.load_state_dict({name: torch.cat([tensor] * times) for name, tensor in state})
    with torch.no_grad():
        body.embeddings.tok_embeddings.weight.copy_(projection(table))
        if isinstance(model, Generator):
            stock.decoder.weight.zero_()[:, : table.shape[1]] = table
            stock.decoder.bias.copy_(head.bias)
    return stock.eval()


def _stock_config(name: str, config: ModelConfig, tokenizer: Any, layers: int) -> Any:
    from transformers import ModernBertConfig

    return ModernBertConfig(
        **{size: getattr(config, size) for size in _SIZES.split()},
        **{role: getattr(tokenizer, role) for role in _ROLES},
        **dict.fromkeys(_BIASES.split(), True),
        **dict.fromkeys(("bos_token_id", "eos_token_id")),
        num_hidden_layers=layers,
        layer_types=["full_attention"] * layers,
        rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": ROTARY_BASE}},
        hidden_activation=config.hidden_act,
        classifier_activation=config.hidden_act,
        norm_eps=config.layer_norm_eps,
        tie_word_embeddings=False,
        num_labels=1,
        architectures=[name],
        dtype="float32",
    )


def write_modernbert(model: Model, tokenizer: Any, folder: Path) -> dict[str, Tensor]:
    """Write config and tokenizer of an encoder, a generator or a discriminator.

    Returns the weights by stock names. Raises CheckpointError for other models, and if stock
    computes other values.
    """
    if type(model) not in CLASSES:
        raise CheckpointError(
            "no stock class has this fine-tuned head on modern blocks; give --kind encoder"
        )
    if isinstance(model, Generator) and model.config.hidden_size % model.config.embedding_size:
        raise CheckpointError(
            f"ModernBERT's MLM head has {model.config.hidden_size} features, no multiple of the "
            f"embedding size {model.config.embedding_size}; give --kind encoder"
        )
    stock = to_modernbert(model, tokenizer)
    ids, mask, segments = probe(model.config, 2, _CHECKED_LENGTH)
    with torch.no_grad():
        values = outputs(model, ids, mask, segments)
        theirs = stock(ids, mask)[0]
    ours = values.get("logits", values["last_hidden_state"])
    require_close(ours.view(theirs.shape), theirs, "stock ModernBERT computes other values")
    stock.config.save_pretrained(folder)
    save_tokenizer(tokenizer, folder, model.config.max_position_embeddings, INPUTS[:2])
    weights: dict[str, Tensor] = stock.state_dict()
    return weights
