"""config.json and parameter names of stock ALBERT, BERT and ELECTRA, and of our own format, to and from ours.

Only known keys of config.json are read, so none can name code to run. Our parameter names are stock ALBERT's without
`albert.`, except that query, key and value form one matrix and that a sentence-order head owns its pooler. BERT and
ELECTRA are ALBERT with a group for every layer; where their embeddings are as wide as the hidden states, the mapping E
to D is the identity. The MLM decoder is the token table and has no entry of its own.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from electra_albert.config import ModelConfig
from electra_albert.contracts import CheckpointError
from electra_albert.model.attention import make_mixing
from electra_albert.model.encoder import ACTIVATIONS
from electra_albert.model.task_model import ARCHITECTURES, DEFAULT_DROPOUT

RELATIVES = ("bert", "electra")
_OURS = ("initialization", "attention", "attention_options")  # fields that no stock config.json has
_NAMES = tuple(field.name for field in fields(ModelConfig) if field.name not in _OURS)
NATIVE, _FORMAT = "electra_albert", 1  # model_type and version of folders that only this package loads
_LARGEST_INTEGER = (1 << 31) - 1  # above it, sizes overflow before they can be compared with the weights
# The one value of settings whose other values mean another computation than ours, or code that is not stock's.
_ALWAYS: dict[str, Any] = {"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False}
_ALWAYS |= {"tie_word_embeddings": True, "quantization_config": None, "auto_map": {}, "custom_pipelines": {}}
TABLE = "embeddings.word_embeddings.weight"
_FUSED = "attention.qkv."
_PARTS = ("attention.query.", "attention.key.", "attention.value.")
_MAPPING = "encoder.embedding_hidden_mapping_in."
_POOLER, _ORDER_POOLER = "pooler.", "sentence_order.pooler."
_ORDER, _STOCK_ORDER = "sentence_order.classifier.", "sop_classifier.classifier."
_DECODER, _DECODER_BIAS = "predictions.decoder.weight", "predictions.decoder.bias"
_COUNTERS = ("embeddings.position_ids", "embeddings.token_type_ids")  # in older files; not weights
# Names of BERT, ELECTRA and files of 2019, and those of stock ALBERT without `albert.`: replaced in this order.
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
# Heads without a counterpart here: BERT's next sentence, ELECTRA's for sentences and choices.
_LEFT_OUT = ("cls.seq_relationship", "classifier.dense", "classifier.out_proj", "sequence_summary")
_KNOWN = (
    *("embeddings.", "encoder.", _POOLER, "predictions.", _STOCK_ORDER),
    *("discriminator_predictions.", "classifier.", "electra_classifier.", "qa_outputs."),
)


def stock_config(config: ModelConfig, architecture: str, special_ids: Mapping[str, int]) -> dict[str, Any]:
    """The contents of config.json, with stock keys only. special_ids: pad_token_id, bos_token_id, eos_token_id."""
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
    """The contents of config.json of a model that stock classes do not compute, by the fields of its ModelConfig."""
    return {"model_type": NATIVE, "format": _FORMAT, **shape}


def model_config(contents: Mapping[str, Any], origin: str) -> ModelConfig:
    """The shape a config.json describes; CheckpointError for another kind of model and for impossible values."""
    kind = contents.get("model_type")
    if not isinstance(kind, str) or kind not in (NATIVE, "albert", *RELATIVES):
        raise CheckpointError(f"{origin} describes a model of type {shown(kind)}; albert, electra and bert can be read")
    if kind == NATIVE and contents.get("format") != _FORMAT:
        raise CheckpointError(f"{origin} is of format {shown(contents.get('format'))}, this version reads {_FORMAT}")
    for name, only in _ALWAYS.items():
        if contents.get(name) not in (None, only):
            raise CheckpointError(f"{name}={shown(contents[name])} in {origin} is another model than can be read here")
    values = _values(contents, kind, origin)
    try:
        if values["hidden_act"] not in ACTIVATIONS:
            raise ValueError(f"hidden_act={shown(values['hidden_act'])} is none of {', '.join(ACTIVATIONS)}")
        config = ModelConfig(**values)
        make_mixing(config)
    except ValueError as error:
        raise CheckpointError(f"{origin}: {error}") from None
    return config


def _values(contents: Mapping[str, Any], kind: str, origin: str) -> dict[str, Any]:
    """The fields of ModelConfig; where config.json is silent, the defaults of the stock class or our own."""
    from transformers import AutoConfig

    ours = ModelConfig()
    names = (*_NAMES, *_OURS) if kind == NATIVE else _NAMES
    defaults = ours if kind == NATIVE else AutoConfig.for_model(kind)
    values = {name: contents.get(name, getattr(defaults, name, getattr(ours, name))) for name in names}
    for name, value in values.items():
        wanted = type(getattr(ours, name))
        if type(value) is int and abs(value) > _LARGEST_INTEGER:
            raise CheckpointError(f"{name} in {origin} is larger than {_LARGEST_INTEGER}")
        if type(value) is int and wanted is float:
            values[name] = float(value)
        elif type(value) is not wanted:
            raise CheckpointError(f"{name}={shown(value)} in {origin} should be of type {wanted.__name__}")
    if kind in RELATIVES:
        values |= {"num_hidden_groups": values["num_hidden_layers"], "inner_group_num": 1}
    if kind == "bert":
        values["embedding_size"] = values["hidden_size"]
    if not all(type(value) in (int, float) for value in values.get("attention_options", {}).values()):
        raise CheckpointError(f"attention_options in {origin} should be numbers by name")
    return values


def shown(value: object) -> str:
    """A value from a file as an error line shows it: short, and without line breaks or colours of a terminal."""
    if isinstance(value, dict | list):
        return f"a {type(value).__name__}"
    return repr(value[:60] if isinstance(value, str) else value)


def stock_details(contents: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """Kind, labels and style of a fine-tuned stock model's head, in the form of TASK_FILE; else CheckpointError."""
    named = contents.get("architectures")
    architecture = named[0] if isinstance(named, list) and named and isinstance(named[0], str) else ""
    kinds = (kind for kind, ours in ARCHITECTURES.items() if architecture.endswith(ours.removeprefix("Albert")))
    if (kind := next(kinds, None)) is None:
        raise CheckpointError(f"{origin} has architecture {shown(architecture)}, no fine-tuned model; fine-tune it")
    problem = contents.get("problem_type")
    if problem not in (None, "regression", "single_label_classification"):
        raise CheckpointError(f"problem_type={shown(problem)} in {origin} is another task than can be read here")
    labels: list[Any] = []
    if kind in ("sequence", "token"):
        names = contents.get("id2label", {"0": "LABEL_0", "1": "LABEL_1"})
        labels = [names.get(str(number)) for number in range(len(names))] if isinstance(names, dict) else []
        if not labels or not all(isinstance(label, str) for label in labels):
            raise CheckpointError(f"id2label in {origin} does not name the labels 0 to {max(0, len(labels) - 1)}")
    is_regression = kind == "sequence" and (problem == "regression" or (problem is None and len(labels) == 1))
    if is_regression and len(labels) != 1:
        raise CheckpointError(f"{origin} describes a regression of {len(labels)} numbers; only one can be read")
    return {"kind": kind, "style": "albert", "labels": [] if is_regression else labels, "is_regression": is_regression}


def require_named(labels: Sequence[str], origin: str) -> None:
    """Raise CheckpointError, in a message that begins with `origin`, where none of the labels has a name."""
    if labels and list(labels) == [f"LABEL_{number}" for number in range(len(labels))]:
        first = ", ".join(labels[:2])
        raise CheckpointError(f"{origin}: its labels have no names ({first}, ...); write id2label into its config.json")


def classifier_dropout(contents: Mapping[str, Any]) -> Any:
    """Dropout before the linear layer, as in stock: BERT and ELECTRA fall back to the encoder's."""
    is_relative = contents.get("model_type") in RELATIVES
    names = ("classifier_dropout", "hidden_dropout_prob") if is_relative else ("classifier_dropout_prob",)
    return next((contents[name] for name in names if contents.get(name) is not None), DEFAULT_DROPOUT)


def to_stock(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our state dict under stock names, ALBERT's (a detection head's: ELECTRA's), float32, in storage of its own."""
    stock = {}
    for name, tensor in to_native(state).items():
        stock_name = name.replace(_ORDER_POOLER, _POOLER).replace(_ORDER, _STOCK_ORDER)
        if stock_name.startswith(("embeddings.", "encoder.", _POOLER)):
            stock_name = f"albert.{stock_name}"
        if _FUSED in name:
            for part, share in zip(_PARTS, tensor.chunk(3), strict=True):
                stock[stock_name.replace(_FUSED, part)] = share.clone()
        else:
            stock[stock_name] = tensor
    return stock


def to_native(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our state dict, float32, each tensor in storage of its own."""
    return {name: tensor.detach().to("cpu", torch.float32).clone() for name, tensor in state.items()}


def from_file(
    tensors: Mapping[str, Tensor], kind: str, config: ModelConfig, origin: str
) -> tuple[dict[str, Tensor], list[str]]:
    """The tensors of a file of model type `kind` under our names, and the heads that have no counterpart here.

    Every pooler is `pooler.`. Raises CheckpointError for anything else that no model here computes.
    """
    if kind == NATIVE:
        return {name.replace(_ORDER_POOLER, _POOLER): tensor for name, tensor in tensors.items()}, []
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        new_name = name.removeprefix(f"{kind}.")
        for pattern, replacement in _TO_ALBERT:
            new_name = re.sub(pattern, replacement, new_name)
        if new_name in found:
            raise CheckpointError(f"{origin} holds {new_name} twice, under two names ({name}); name another model")
        found[new_name] = tensor
    left_aside = [head for head in _LEFT_OUT if any(name.startswith(f"{head}.") for name in found)]
    omitted = (*_COUNTERS, *(f"{head}." for head in left_aside))
    found = {name: tensor for name, tensor in found.items() if not name.startswith(omitted)}
    if kind == "electra" and config.hidden_act != "gelu" and any(name.startswith("predictions.") for name in found):
        raise CheckpointError(f"{origin} holds ELECTRA's MLM head, which has gelu, but names {config.hidden_act}")
    if kind in RELATIVES and config.embedding_size == config.hidden_size:
        if any(name.startswith(_MAPPING) for name in found):
            raise CheckpointError(f"{origin} holds a mapping of embeddings that stock does not apply; get another file")
        if config.hidden_size**2 < sum(tensor.numel() for tensor in found.values()):  # or config.json is wrong
            found[f"{_MAPPING}weight"] = torch.eye(config.hidden_size)
            found[f"{_MAPPING}bias"] = torch.zeros(config.hidden_size)
    decoder, bias = found.pop(_DECODER, None), found.pop(_DECODER_BIAS, None)
    if decoder is not None and not torch.equal(decoder, found.get(TABLE, decoder)):
        raise CheckpointError(f"{origin} holds {_DECODER}, which differs from its token table; only tied ones are read")
    if bias is not None:  # goes before the head's own
        found["predictions.bias"] = bias
    return _fused(found, kind, origin), left_aside


def for_order_head(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with the pooler as part of a sentence-order head."""
    return {re.sub(r"^pooler\.", _ORDER_POOLER, name): tensor for name, tensor in state.items()}


def _fused(tensors: Mapping[str, Tensor], kind: str, origin: str) -> dict[str, Tensor]:
    """Query, key and value of each block in one matrix, and the order head's linear layer under our name."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if not name.startswith(_KNOWN) or _FUSED in name:
            raise CheckpointError(f"{origin} holds {name}, which no {kind} model known here has; name another model")
        if not tensor.is_floating_point():
            raise CheckpointError(f"{origin}: {name} is {tensor.dtype}, which no trained weight is; get another file")
        part = next((part for part in _PARTS if part in name), None)
        if part is None:
            found[name.replace(_STOCK_ORDER, _ORDER)] = tensor
            continue
        parts = [tensors.get(name.replace(part, other)) for other in _PARTS]
        whole = [each for each in parts if each is not None and each.ndim and each.shape == tensor.shape]
        if len(whole) < len(_PARTS):
            raise CheckpointError(f"{origin} has no query, key and value of one shape for {name}; it is not whole")
        if part == _PARTS[0]:
            found[name.replace(part, _FUSED)] = torch.cat(whole)
    return found
