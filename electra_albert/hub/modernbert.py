"""Models with modern blocks from and to stock ModernBERT, which neither shares nor factorises.

Read, a layer is a group and E = D, with the identity as projection; biases that it lacks in all
layers are 0. Written, shared blocks are repeated, and the projection E to D is multiplied into the
table. The MLM head has E features, stock's D: they are repeated, which LayerNorm does not change,
and only the first E of them are multiplied by the table. Stock names the LayerNorm after a layer by
the next.
Dimensions: V vocab, E embedding, D hidden.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
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
from electra_albert.model.encoder import EncoderModel
from electra_albert.model.task_model import TaskModel
from electra_albert.tokenization.tokenizer import save_tokenizer

_EQUAL = """vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size
    max_position_embeddings local_attention"""
_NAMES = {  # fields of ModelConfig by their names in stock
    **{name: name for name in _EQUAL.split()},
    "hidden_act": "hidden_activation",
    "layer_norm_eps": "norm_eps",
}
_BIASES = "norm_bias attention_bias mlp_bias classifier_bias"
_ROLES = ("pad_token_id", "cls_token_id", "sep_token_id")
_BASES = {"full_attention": "global_rope_theta", "sliding_attention": "local_rope_theta"}
_KINDS = tuple(_BASES)  # of layers
_UNBIASED = (".bias", "word_embeddings", "decoder", "classifier")  # or always with a bias
_LAYERS = (  # names in a layer of stock, and in our block
    ("attn.Wqkv", "attention.qkv"),
    ("attn.Wo", "attention.dense"),
    ("mlp_norm", "attention.LayerNorm"),
    ("mlp.Wi", "ffn"),
    ("mlp.Wo", "ffn_output"),
)
_DETECTION = "discriminator_predictions"
# The stock class, and the names of our head and its output layer, by our class.
CLASSES: dict[type, tuple[str, str, str]] = {
    EncoderModel: ("ModernBertModel", "", ""),
    Generator: ("ModernBertForMaskedLM", "predictions", ""),
    Discriminator: (
        "ModernBertForTokenClassification",
        _DETECTION,
        f"{_DETECTION}.dense_prediction",
    ),
    TaskModel: ("", "prediction_head", "classifier"),
}


def architecture(model: Model) -> str:
    """The stock class of a model."""
    return model.head.architecture if isinstance(model, TaskModel) else CLASSES[type(model)][0]


def to_modernbert(model: Model, tokenizer: Any, labels: Mapping[str, Any]) -> Any:
    """The stock model, in eval mode; labels: settings of config.json that describe a task."""
    import transformers

    name = architecture(model)
    settings = _stock_settings(model.config, tokenizer)
    with quiet():
        config = transformers.ModernBertConfig(
            architectures=[name],
            tie_word_embeddings=not isinstance(model, Generator),
            **settings,
            **labels,
        )
        stock = getattr(transformers, name)(config)
    table = model.embeddings.table
    stock.to(table.dtype)
    _, head, classifier = CLASSES[type(model)]
    names = _layer_names(model.config, head)
    if classifier:
        names.append(("classifier", classifier))
    body = getattr(stock, "model", stock)
    for their_name, our_name in names:
        part = stock if their_name.startswith(("head.", "classifier")) else body
        theirs = part.get_submodule(their_name)
        ours = model.get_submodule(our_name)
        times = len(theirs.weight) // len(ours.weight)  # type: ignore[arg-type]
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
    size = config.group_size * config.inner_group_num
    layers = range(size * config.num_hidden_groups)
    kinds = [_KINDS[not config.is_global(layer // size)] for layer in layers]
    return {
        **{stock: getattr(config, ours) for ours, stock in _NAMES.items()},
        **{name: getattr(config, name) for name in _BASES.values()},
        **{role: getattr(tokenizer, role) for role in _ROLES},
        **dict.fromkeys(_BIASES.split(), True),
        **dict.fromkeys(("bos_token_id", "eos_token_id")),
        "num_hidden_layers": len(kinds),
        "layer_types": kinds,
        "classifier_activation": config.hidden_act,
        "classifier_pooling": "mean",
        "dtype": "float32",
    }


def _layer_names(config: ModelConfig, head: str) -> list[tuple[str, str]]:
    """Names of the layers in stock and in ours, but for embeddings and output layers."""
    names = [("embeddings.norm", "encoder.embedding_hidden_mapping_in.LayerNorm")]
    layer = 0
    for group in range(config.num_hidden_groups):
        for number in [*range(config.inner_group_num)] * config.group_size:
            block = f"encoder.albert_layer_groups.{group}.albert_layers.{number}."
            names += [(f"layers.{layer}.{theirs}", block + ours) for theirs, ours in _LAYERS]
            layer += 1
            names.append((f"layers.{layer}.attn_norm", f"{block}full_layer_layer_norm"))
    names[-1] = ("final_norm", names[-1][1])
    if head:
        names += [("head.dense", f"{head}.dense"), ("head.norm", f"{head}.LayerNorm")]
    return names


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
    contents = load_json(folder / "config.json", dict)
    names = ("id2label", "label2id", "problem_type")
    labels = {name: contents[name] for name in names if name in contents}
    if isinstance(model, Discriminator):
        labels["num_labels"] = 1
    stock = to_modernbert(model, tokenizer, labels)
    ids, mask, segments = probe(model.config)
    with torch.no_grad():
        values = outputs(model, ids, mask, segments)
        is_choice = stock.config.architectures[0].endswith("MultipleChoice")
        theirs = stock(ids[None], mask[None]) if is_choice else stock(ids, mask)
    for name in theirs.keys() & values.keys():
        value = values[name]
        expected = theirs[name].view(value.shape)
        if value.shape[:2] == mask.shape:  # padding has other values in sliding windows
            value, expected = value[mask == 1], expected[mask == 1]
        require_close(value, expected, f"stock ModernBERT computes other {name}")
    # Transformers 4 reads them, where 5 has layer_types and rope_parameters.
    stock.config.update({name: getattr(model.config, name) for name in _BASES.values()})
    every = _full_attention_every(stock.config.layer_types)  # None: transformers 4 raises
    stock.config.global_attn_every_n_layers = every
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
    activation = settings["hidden_act"]
    of_head = contents.get("classifier_activation", default.classifier_activation)
    require(of_head == activation, "classifier_activation is not hidden_activation")
    every = contents.get("global_attn_every_n_layers", 3)
    kinds = contents.get("layer_types")
    if kinds is not None:
        require(is_of_kind(kinds, list[str]), "layer_types is no list of names")
        every = _full_attention_every(kinds)
        is_known = every is not None and len(kinds) == settings["num_hidden_layers"]
        require(is_known, "layer_types has no full attention in the first and every n-th layer")
    rotary = contents.get("rope_parameters") or {}
    require(
        is_of_kind(rotary, dict[str, dict[str, Any]]),
        "rope_parameters has no mapping for each type",
    )
    for kind, name in _BASES.items():
        parameters = {"rope_type": "default", **rotary.get(kind, {})}
        problem = "rope_parameters: only rope_type=default is supported"
        require(parameters["rope_type"] == "default", problem)
        base = contents.get(name, default.rope_parameters[kind]["rope_theta"])
        settings[name] = parameters.get("rope_theta", base)
    return settings | {
        "block": "modern",
        "embedding_size": settings["hidden_size"],
        "num_hidden_groups": settings["num_hidden_layers"],
        "global_attn_every_n_layers": every,
    }


def _full_attention_every(kinds: Sequence[str]) -> int | None:
    """The n if exactly the first and every n-th layer after it have full attention."""
    every = [*kinds[1:], _KINDS[0]].index(_KINDS[0]) + 1
    expected = [_KINDS[bool(number % every)] for number in range(len(kinds))]
    return every if kinds == expected else None


def to_ours(tensors: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Tensors of a stock model by our names; biases that it lacks in all layers are 0, as is that
    of a decoder, which has no layer of its kind to compare with.
    """
    is_task = any(name.startswith("classifier.") for name in tensors)
    # The model may apply each layer more often.
    stored = replace(config, num_hidden_layers=config.num_hidden_groups)
    names = {
        "embeddings.tok_embeddings": "embeddings.word_embeddings",
        "decoder": "predictions.decoder",
        **dict(_layer_names(stored, CLASSES[TaskModel if is_task else Generator][1])),
    }
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        layer_name, _, kind = name.removeprefix("model.").rpartition(".")
        renamed[f"{names.get(layer_name, layer_name)}.{kind}"] = tensor
    biased = {_switch(name) for name in renamed if name.endswith(".bias")}
    for name, tensor in [*renamed.items()]:
        layer = name.removesuffix(".weight")
        bias = f"{layer}.bias"
        is_stored = _switch(bias) in biased  # for another layer, if not for this one
        if tensor.numel() and not (is_stored or layer.endswith(_UNBIASED)):
            renamed[bias] = torch.zeros(tensor.shape[:1])
    if "predictions.dense.weight" in renamed:
        zeros = torch.zeros(1).expand(config.vocab_size)  # whose size is not checked yet
        renamed.setdefault("predictions.decoder.bias", zeros)
    return renamed


def _switch(bias: str) -> str:
    """Biases of one switch are all there or all missing: of all norms, or of one layer's kind."""
    return "norm" if "norm" in bias.lower() else re.sub(r"\d", "", bias)
