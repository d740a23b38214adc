"""Conversion of config.json and parameter names between our models, stock ALBERT, BERT and ELECTRA, and our format.

Only known keys of config.json are read, so it cannot name code to run. Our parameter names are stock ALBERT's without
`albert.`, except that query, key and value are one matrix and that a sentence-order head contains its pooler. BERT and
ELECTRA are ALBERT with one group per layer; if E = D, their projection E to D is the identity. The MLM decoder is tied
to the word embeddings and has no entry of its own.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from electra_albert.config import ModelConfig
from electra_albert.contracts import CheckpointError
from electra_albert.model.attention import mixing_shapes
from electra_albert.model.encoder import ACTIVATIONS
from electra_albert.model.task_model import ARCHITECTURES, DEFAULT_DROPOUT

State = Mapping[str, Tensor]  # a state dict
RELATIVES = ("bert", "electra")
# Fields that no stock config.json has.
_OURS = ("initialization", "zero_init_outputs", "attention", "attention_options")
_NAMES = tuple(field.name for field in fields(ModelConfig) if field.name not in _OURS)
# In config.json a note for this package, and in a checkpoint an option group: the detection head returns energies.
ENERGIES = "electric"
NATIVE, _FORMAT = "electra_albert", 1  # model_type and version of folders that only this package loads
_MAX_INTEGER = (1 << 31) - 1  # larger sizes overflow before they are compared with the weights
# Settings with only one supported value: others mean another computation than ours, or custom code.
_ALWAYS: dict[str, Any] = {"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False}
_ALWAYS |= {"tie_word_embeddings": True, "quantization_config": None, "auto_map": {}, "custom_pipelines": {}}
TABLE = "embeddings.word_embeddings.weight"
_FUSED = "attention.qkv."
_PARTS = ("attention.query.", "attention.key.", "attention.value.")
_MAPPING = "encoder.embedding_hidden_mapping_in."
_POOLER, _ORDER_POOLER = "pooler.", "sentence_order.pooler."
_ORDER, _STOCK_ORDER = "sentence_order.classifier.", "sop_classifier.classifier."
_DECODER, _DECODER_BIAS = "predictions.decoder.weight", "predictions.decoder.bias"
_COUNTERS = ("embeddings.position_ids", "embeddings.token_type_ids")  # buffers of older files, not weights
# Names of BERT, ELECTRA and files of 2019 and their stock ALBERT names without `albert.`, replaced in this order.
_TO_ALBERT = (
    (r"LayerNorm\.gamma$", "LayerNorm.weight"),
    (r"LayerNorm\.beta$", "LayerNorm.bias"),
    (r"^encoder\.layer\.(\d+)\.", r"encoder.albert_layer_groups.\1.albert_layers.0."),
    (r"\.attention\.(self|output)\.", ".attention."),
    (r"\.intermediate\.dense\.", ".ffn."),
    (r"\.output\.dense\.", ".ffn_output."),
    (r"\.output\.LayerNorm\.", ".full_layer_layer_norm."),
    (r"^embeddings_project\.", _MAPPING),
    (r"^pooler\.dense\.", _POOLER),
    (r"^generator_lm_head\.weight$", _DECODER),
    (r"^generator_lm_head\.bias$", "predictions.bias"),
    (r"^(generator_predictions|cls\.predictions\.transform|cls\.predictions)\.", "predictions."),
)
# Unsupported heads: BERT's next-sentence prediction, ELECTRA's sequence classification and multiple choice.
_UNSUPPORTED = ("cls.seq_relationship", "classifier.dense", "classifier.out_proj", "sequence_summary")
_KNOWN = (
    *("embeddings.", "encoder.", _POOLER, "predictions.", _STOCK_ORDER),
    *("discriminator_predictions.", "classifier.", "electra_classifier.", "qa_outputs."),
)


def stock_config(config: ModelConfig, architecture: str, special_ids: Mapping[str, int]) -> dict[str, Any]:
    """Contents of a stock config.json. special_ids: pad_token_id, bos_token_id, eos_token_id."""
    return {
        "architectures": [architecture],
        "model_type": "albert",
        "dtype": "float32",
        "tie_word_embeddings": True,
        "classifier_dropout_prob": DEFAULT_DROPOUT,
        **{name: getattr(config, name) for name in _NAMES},
        **special_ids,
    }


def native_config(shape: Mapping[str, Any]) -> dict[str, Any]:
    """Contents of config.json in our own format, for models without a stock class; shape: fields of ModelConfig."""
    return {"model_type": NATIVE, "format": _FORMAT, **shape}


def model_config(contents: Mapping[str, Any], source: str) -> ModelConfig:
    """Read a ModelConfig from config.json. Raises CheckpointError for another model type and for impossible values."""
    kind = contents.get("model_type")
    if not isinstance(kind, str) or kind not in (NATIVE, "albert", *RELATIVES):
        raise CheckpointError(f"{source} is of type {short_repr(kind)}; supported are albert, electra and bert")
    if kind == NATIVE and contents.get("format") != _FORMAT:
        raise CheckpointError(f"{source} has format {short_repr(contents.get('format'))}, this version reads {_FORMAT}")
    scale = contents.get("residual_scale", 1)
    if kind == NATIVE and scale != 1:  # of earlier versions
        raise CheckpointError(f"{source} has residual_scale {short_repr(scale)}, which is gone; use an exported folder")
    for name, only in _ALWAYS.items():
        if (value := contents.get(name)) not in (None, only):
            raise CheckpointError(f"{name}={short_repr(value)} in {source} is not supported; name another model")
    values = _values(contents, kind, source)
    try:
        if values["hidden_act"] not in ACTIVATIONS:
            raise ValueError(f"hidden_act={short_repr(values['hidden_act'])} is not one of {', '.join(ACTIVATIONS)}")
        config = ModelConfig(**values)
        mixing_shapes(config)
    except ValueError as error:
        raise CheckpointError(f"{source}: {error}") from None
    return config


def _values(contents: Mapping[str, Any], kind: str, source: str) -> dict[str, Any]:
    """Values of the fields of ModelConfig; missing keys get the defaults of the stock class, or else our own."""
    from transformers import AutoConfig

    ours = ModelConfig()
    names = (*_NAMES, *_OURS) if kind == NATIVE else _NAMES
    defaults = ours if kind == NATIVE else AutoConfig.for_model(kind)
    values = {name: contents.get(name, getattr(defaults, name, getattr(ours, name))) for name in names}
    for name, value in values.items():
        wanted = type(getattr(ours, name))
        if type(value) is int and abs(value) > _MAX_INTEGER:
            raise CheckpointError(f"{name} in {source} is larger than {_MAX_INTEGER}; name another model")
        if type(value) is int and wanted is float:
            values[name] = float(value)
        elif type(value) is not wanted:
            raise CheckpointError(f"{name}={short_repr(value)} in {source} should be of type {wanted.__name__}")
    if kind in RELATIVES:
        values |= {"num_hidden_groups": values["num_hidden_layers"], "inner_group_num": 1}
    if kind == "bert":
        values["embedding_size"] = values["hidden_size"]
    if not all(type(value) in (int, float) for value in values.get("attention_options", {}).values()):
        raise CheckpointError(f"attention_options in {source} should map names to numbers")
    return values


def short_repr(value: object) -> str:
    """A value from a file for an error message: short, without line breaks or terminal colours."""
    if isinstance(value, dict | list):
        return f"a {type(value).__name__}"
    return repr(value[:60] if isinstance(value, str) else value)


def stock_details(contents: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Task details of a fine-tuned stock model, as in TASK_FILE. Raises CheckpointError for any other model."""
    named = contents.get("architectures")
    architecture = named[0] if isinstance(named, list) and named and isinstance(named[0], str) else ""
    kinds = (kind for kind, ours in ARCHITECTURES.items() if architecture.endswith(ours.removeprefix("Albert")))
    if (kind := next(kinds, None)) is None:
        raise CheckpointError(f"{source}: architecture {short_repr(architecture)} is not fine-tuned; fine-tune it")
    if (problem := contents.get("problem_type")) not in (None, "regression", "single_label_classification"):
        raise CheckpointError(f"problem_type={short_repr(problem)} in {source} is not supported; name another model")
    labels: list[Any] = []
    if kind in ("sequence", "token"):
        names = contents.get("id2label", {"0": "LABEL_0", "1": "LABEL_1"})
        labels = [names.get(str(number)) for number in range(len(names))] if isinstance(names, dict) else []
        if not labels or not all(isinstance(label, str) for label in labels):
            raise CheckpointError(f"id2label in {source} does not name the labels 0 to {max(0, len(labels) - 1)}")
    is_regression = kind == "sequence" and (problem == "regression" or (problem is None and len(labels) == 1))
    if is_regression and len(labels) != 1:
        raise CheckpointError(f"{source} describes a regression of {len(labels)} numbers; only one is supported")
    return {"kind": kind, "style": "albert", "labels": [] if is_regression else labels, "is_regression": is_regression}


def require_named(labels: Sequence[str], source: str) -> None:
    """Raise CheckpointError, with a message that begins with `source`, if the labels are LABEL_0, LABEL_1, ...."""
    if labels and list(labels) == [f"LABEL_{number}" for number in range(len(labels))]:
        first = ", ".join(labels[:2])
        raise CheckpointError(f"{source}: its labels have no names ({first}, ...); write id2label into its config.json")


def classifier_dropout(contents: Mapping[str, Any]) -> Any:
    """Dropout before the output layer, as in stock: BERT and ELECTRA fall back to hidden_dropout_prob."""
    is_relative = contents.get("model_type") in RELATIVES
    names = ("classifier_dropout", "hidden_dropout_prob") if is_relative else ("classifier_dropout_prob",)
    return next((contents[name] for name in names if contents.get(name) is not None), DEFAULT_DROPOUT)


def to_stock(state: State) -> dict[str, Tensor]:
    """Our state dict under stock names (ALBERT's; ELECTRA's for the detection head), as float32 copies on the CPU."""
    stock = {}
    for name, tensor in to_native(state).items():
        stock_name = name.replace(_ORDER_POOLER, _POOLER).replace(_ORDER, _STOCK_ORDER)
        if stock_name.startswith(("embeddings.", "encoder.", _POOLER)):
            stock_name = f"albert.{stock_name}"
        if _FUSED in name:
            for part, third in zip(_PARTS, tensor.chunk(3), strict=True):
                stock[stock_name.replace(_FUSED, part)] = third.clone()
        else:
            stock[stock_name] = tensor
    return stock


def to_native(state: State) -> dict[str, Tensor]:
    """Our state dict as float32 copies on the CPU."""
    return {name: tensor.detach().to("cpu", torch.float32).clone() for name, tensor in state.items()}


def from_file(tensors: State, kind: str, config: ModelConfig, source: str) -> tuple[dict[str, Tensor], list[str]]:
    """Tensors of model type `kind` by our names (poolers as `pooler.`), and unsupported heads; else CheckpointError."""
    if kind == NATIVE:
        return {name.replace(_ORDER_POOLER, _POOLER): tensor for name, tensor in tensors.items()}, []
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        new_name = name.removeprefix(f"{kind}.")
        for pattern, replacement in _TO_ALBERT:
            new_name = re.sub(pattern, replacement, new_name)
        if new_name in found:
            raise CheckpointError(f"{source} contains {new_name} twice, also as {name}; name another model")
        found[new_name] = tensor
    unsupported_heads = [head for head in _UNSUPPORTED if any(name.startswith(f"{head}.") for name in found)]
    omitted = (*_COUNTERS, *(f"{head}." for head in unsupported_heads))
    found = {name: tensor for name, tensor in found.items() if not name.startswith(omitted)}
    if kind == "electra" and config.hidden_act != "gelu" and any(name.startswith("predictions.") for name in found):
        raise CheckpointError(f"{source} has ELECTRA's MLM head, which uses gelu, but hidden_act={config.hidden_act}")
    if kind in RELATIVES and config.embedding_size == config.hidden_size:
        if any(name.startswith(_MAPPING) for name in found):
            raise CheckpointError(f"{source} projects embeddings, which stock does not do if E = D; get another file")
        if config.hidden_size**2 < sum(tensor.numel() for tensor in found.values()):  # or config.json is wrong
            found[f"{_MAPPING}weight"] = torch.eye(config.hidden_size)
            found[f"{_MAPPING}bias"] = torch.zeros(config.hidden_size)
    decoder, bias = found.pop(_DECODER, None), found.pop(_DECODER_BIAS, None)
    if decoder is not None and not torch.equal(decoder, found.get(TABLE, decoder)):
        raise CheckpointError(f"{source}: {_DECODER} differs from the word embeddings; only tied ones are supported")
    if bias is not None:  # overrides predictions.bias
        found["predictions.bias"] = bias
    return _fused(found, kind, source), unsupported_heads


def for_order_head(state: State) -> dict[str, Tensor]:
    """Rename the pooler to that of a sentence-order head."""
    return {re.sub(r"^pooler\.", _ORDER_POOLER, name): tensor for name, tensor in state.items()}


def _fused(tensors: State, kind: str, source: str) -> dict[str, Tensor]:
    """Concatenate query, key and value of each block, and rename the order head's linear layer."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if not name.startswith(_KNOWN) or _FUSED in name:
            raise CheckpointError(f"{source} contains {name}, which no supported {kind} model has; name another model")
        if not tensor.is_floating_point():
            raise CheckpointError(f"{source}: {name} is {tensor.dtype}, not floating point; get another file")
        if (part := next((part for part in _PARTS if part in name), None)) is None:
            found[name.replace(_STOCK_ORDER, _ORDER)] = tensor
            continue
        parts = [tensors.get(name.replace(part, other)) for other in _PARTS]
        whole = [each for each in parts if each is not None and each.ndim and each.shape == tensor.shape]
        if len(whole) < len(_PARTS):
            raise CheckpointError(f"{source} lacks query, key and value of one shape for {name}; get another file")
        if part == _PARTS[0]:
            found[name.replace(part, _FUSED)] = torch.cat(whole)
    return found
