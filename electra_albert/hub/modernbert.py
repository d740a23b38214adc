"""Models with modern blocks from and to stock ModernBERT, which neither shares nor factorises.

Read, a layer is a group and E = D, with the identity as projection; biases that it lacks are 0.
Written, shared blocks are repeated, and the projection E to D is multiplied into the table. The MLM
head has E features, stock's D: they are repeated, which LayerNorm does not change, and only the
first E of them are multiplied by the table. Stock names the LayerNorm after a layer by the next.
Dimensions: V vocab, E embedding, D hidden.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from electra_albert.config.checks import require
from electra_albert.config.model import ModelConfig
from electra_albert.contracts import CheckpointError
from electra_albert.files import is_of_kind, load_json
from electra_albert.hub.onnx import INPUTS, Model, outputs, probe, quiet, require_close
from electra_albert.model.electra import Discriminator, Generator
from electra_albert.model.task_model import TaskModel
from electra_albert.tokenization.tokenizer import save_tokenizer

_NAMES = {  # fields of ModelConfig by their names in stock
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_hidden_layers",
    "num_attention_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "hidden_act": "hidden_activation",
    "hidden_dropout_prob": "mlp_dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "max_position_embeddings": "max_position_embeddings",
    "layer_norm_eps": "norm_eps",
    "local_attention": "local_attention",
}
_BIASES = "norm_bias attention_bias mlp_bias classifier_bias"
_ROLES = ("pad_token_id", "cls_token_id", "sep_token_id")
_KINDS = ("full_attention", "sliding_attention")  # of layers
_TABLE = "embeddings.word_embeddings.weight"
_MAPPING = "encoder.embedding_hidden_mapping_in."
_LAYERS = {  # our names in a block by stock's in a layer
    "attn.Wqkv": "attention.qkv",
    "attn.Wo": "attention.dense",
    "mlp_norm": "attention.LayerNorm",
    "mlp.Wi": "ffn",
    "mlp.Wo": "ffn_output",
}
_LAST_NORM = "full_layer_layer_norm"  # of a block; in stock the first of the next layer
_CHECKED_LENGTH = 24
HEADS: dict[type, str] = {  # our heads that are written, by class
    Generator: "predictions",
    Discriminator: "discriminator_predictions",
    TaskModel: "prediction_head",
}


def architecture(model: Model) -> str:
    """The stock class of a model."""
    if isinstance(model, TaskModel):
        return model.head.architecture
    if isinstance(model, Discriminator):
        return "ModernBertForTokenClassification"
    return "ModernBertForMaskedLM" if isinstance(model, Generator) else "ModernBertModel"


def to_modernbert(model: Model, tokenizer: Any, labels: Mapping[str, Any] | None = None) -> Any:
    """The stock model, in eval mode; labels: settings of config.json that describe a task."""
    import transformers

    name = architecture(model)
    settings = {**_stock_settings(model.config, tokenizer), **(labels or {"num_labels": 1})}
    settings |= {"architectures": [name], "tie_word_embeddings": not isinstance(model, Generator)}
    with quiet():
        stock = getattr(transformers, name)(transformers.ModernBertConfig(**settings))
    table = model.embeddings.table
    stock.to(table.dtype)
    for theirs, ours in _layers(stock, model):
        times = len(theirs.weight) // len(ours.weight)
        state = ours.state_dict().items()
        theirs.load_state_dict({name: torch.cat([tensor] * times) for name, tensor in state})
    with torch.no_grad():
        projected = model.encoder.embedding_hidden_mapping_in[0](table)
        stock.get_input_embeddings().weight.copy_(projected)
        if isinstance(model, Generator):
            stock.decoder.weight.zero_()[:, : table.shape[1]] = table
            stock.decoder.bias.copy_(model.predictions.bias)
    return stock.eval()


def _stock_settings(config: ModelConfig, tokenizer: Any) -> dict[str, Any]:
    size = config.num_hidden_layers // config.num_hidden_groups * config.inner_group_num
    kinds: list[str] = []
    for group in range(config.num_hidden_groups):
        kinds += [_KINDS[not config.is_global(group)]] * size
    bases = (config.global_rope_theta, config.local_rope_theta)
    rotary = {
        kind: {"rope_type": "default", "rope_theta": base}
        for kind, base in zip(_KINDS, bases, strict=True)
    }
    return {
        **{stock: getattr(config, ours) for ours, stock in _NAMES.items()},
        **{role: getattr(tokenizer, role) for role in _ROLES},
        **dict.fromkeys(_BIASES.split(), True),
        **dict.fromkeys(("bos_token_id", "eos_token_id")),
        "num_hidden_layers": len(kinds),
        "layer_types": kinds,
        "rope_parameters": rotary,
        "classifier_activation": config.hidden_act,
        "dtype": "float32",
    }


def _layers(stock: Any, model: Any) -> Iterator[tuple[Any, Any]]:
    """The layers of a stock model but for embeddings and decoder, each with ours."""
    body = getattr(stock, "model", stock)
    yield body.embeddings.norm, model.encoder.embedding_hidden_mapping_in[1]
    size = model.config.num_hidden_layers // model.config.num_hidden_groups
    blocks: list[Any] = []
    for group in model.encoder.albert_layer_groups:
        blocks += [*group.albert_layers] * size
    next_norms = [*(layer.attn_norm for layer in body.layers[1:]), body.final_norm]
    for layer, next_norm, block in zip(body.layers, next_norms, blocks, strict=True):
        for theirs, ours in _LAYERS.items():
            yield layer.get_submodule(theirs), block.get_submodule(ours)
        yield next_norm, block.get_submodule(_LAST_NORM)
    if type(model) in HEADS:
        head = model.get_submodule(HEADS[type(model)])
        yield stock.head.dense, head.dense
        yield stock.head.norm, head.LayerNorm
    if isinstance(model, Discriminator):
        yield stock.classifier, head.dense_prediction
    if isinstance(model, TaskModel):
        yield stock.classifier, model.output


def write_modernbert(model: Model, tokenizer: Any, folder: Path) -> dict[str, Tensor]:
    """Write config and tokenizer of a model into a folder with our own config.json.

    Returns the weights by stock names. Raises CheckpointError if stock has no such head, or
    computes other values.
    """
    if isinstance(model, Generator) and model.config.hidden_size % model.config.embedding_size:
        raise CheckpointError(
            f"ModernBERT's MLM head has {model.config.hidden_size} features, no multiple of the "
            f"embedding size {model.config.embedding_size}; give --kind encoder"
        )
    labels = {}
    if isinstance(model, TaskModel):
        contents = load_json(folder / "config.json", dict)
        names = ("id2label", "label2id", "problem_type")
        labels = {name: contents[name] for name in names if name in contents}
        labels["num_labels"] = model.head.num_labels
        labels["classifier_dropout"] = model.head.dropout
    stock = to_modernbert(model, tokenizer, labels)
    ids, mask, segments = probe(model.config, 2, _CHECKED_LENGTH)
    with torch.no_grad():
        values = outputs(model, ids, mask, segments)
        is_choice = stock.config.architectures[0].endswith("MultipleChoice")
        theirs = stock(ids[None], mask[None]) if is_choice else stock(ids, mask)
    for name in theirs.keys() & values.keys():
        value = values[name]
        problem = f"stock ModernBERT computes other {name}"
        require_close(value, theirs[name].view(value.shape), problem)
    stock.config.save_pretrained(folder)
    save_tokenizer(tokenizer, folder, model.config.max_position_embeddings, INPUTS[:2])
    weights: dict[str, Tensor] = stock.state_dict()
    return weights


def our_settings(contents: Mapping[str, Any]) -> dict[str, Any]:
    """Contents of a stock config.json under the names of ModelConfig.

    Raises ValueError for layers or rotary positions that modern blocks do not have.
    """
    from transformers import ModernBertConfig

    default = ModernBertConfig()
    settings = {
        ours: contents.get(stock, getattr(default, stock)) for ours, stock in _NAMES.items()
    }
    every = contents.get("global_attn_every_n_layers", 3)
    kinds = contents.get("layer_types")
    if kinds is not None:
        require(is_of_kind(kinds, list[str]), "layer_types is no list of names")
        every = next((i for i, kind in enumerate(kinds) if i and kind == _KINDS[0]), len(kinds))
        expected = [_KINDS[bool(number % every)] for number in range(len(kinds))]
        is_known = kinds == expected and len(kinds) == settings["num_hidden_layers"]
        require(is_known, "layer_types has no full attention in the first and every n-th layer")
    rotary = contents.get("rope_parameters") or {}
    require(
        is_of_kind(rotary, dict[str, dict[str, Any]]),
        "rope_parameters has no mapping for each type",
    )
    for name, kind in zip(("global_rope_theta", "local_rope_theta"), _KINDS, strict=True):
        parameters = {"rope_type": "default", **rotary.get(kind, {})}
        is_default = parameters["rope_type"] == "default"
        require(is_default, "rope_parameters: only rope_type=default is supported")
        base = contents.get(name, default.rope_parameters[kind]["rope_theta"])
        settings[name] = parameters.get("rope_theta", base)
    return settings | {
        "block": "modern",
        "embedding_size": settings["hidden_size"],
        "num_hidden_groups": settings["num_hidden_layers"],
        "global_attn_every_n_layers": every,
    }


def to_ours(tensors: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Tensors of a stock model by our names, but for those of a decoder."""
    is_task = any(name.startswith("classifier.") for name in tensors)
    head = HEADS[TaskModel if is_task else Generator]
    names = {
        "embeddings.tok_embeddings": "embeddings.word_embeddings",
        "embeddings.norm": f"{_MAPPING}LayerNorm",
        "head.dense": f"{head}.dense",
        "head.norm": f"{head}.LayerNorm",
        "decoder": "predictions.decoder",
    }
    for layer in range(config.num_hidden_groups):
        block = f"encoder.albert_layer_groups.{layer}.albert_layers.0"
        names |= {f"layers.{layer}.{theirs}": f"{block}.{ours}" for theirs, ours in _LAYERS.items()}
        names[f"layers.{layer + 1}.attn_norm"] = f"{block}.{_LAST_NORM}"
        names["final_norm"] = f"{block}.{_LAST_NORM}"
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        layer_name, _, kind = name.removeprefix("model.").rpartition(".")
        renamed[f"{names.get(layer_name, layer_name)}.{kind}"] = tensor
    table = renamed.get(_TABLE, torch.empty(0))
    renamed[f"{_MAPPING}dense.weight"] = torch.eye(table.shape[-1] if table.ndim else 0)
    for name, tensor in [*renamed.items()]:
        if name.endswith(".weight") and name not in (_TABLE, "predictions.decoder.weight"):
            bias = name.removesuffix("weight") + "bias"
            renamed.setdefault(bias, torch.zeros(tensor.shape[:1]))
    if f"{HEADS[Generator]}.dense.weight" in renamed:
        renamed.setdefault("predictions.bias", torch.zeros(table.shape[:1]))
    return renamed
