"""Conversion of config.json and parameter names between our models and stock ones.

Only known keys of config.json are read, so it cannot name code to run. Our parameter names are
stock ALBERT's without `albert.`, except that query, key and value are one matrix and that a
sentence-order head contains its pooler. BERT and ELECTRA are ALBERT with one group per layer; if
E = D, their projection E to D is the identity. The MLM decoder is tied to the word embeddings and
has no entry of its own; modernbert.py converts ModernBERT. For example:

    ELECTRA  electra.encoder.layer.3.attention.self.query.weight
    ALBERT   albert.encoder.albert_layer_groups.3.albert_layers.0.attention.query.weight
    ours     encoder.albert_layer_groups.3.albert_layers.0.attention.qkv.weight
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from electra_albert.config.model import MODERN_FIELDS, ModelConfig
from electra_albert.contracts import CheckpointError
from electra_albert.files import is_of_kind
from electra_albert.hub import modernbert
from electra_albert.model.attention import make_mixing
from electra_albert.model.encoder import ACTIVATIONS
from electra_albert.model.task_model import ARCHITECTURES, DEFAULT_DROPOUT, MODERNBERT

State = Mapping[str, Tensor]  # a state dict
RELATIVES = ("bert", "electra")
# Fields that no config.json of stock ALBERT has.
_OURS = (
    *("initialization", "zero_init_outputs", "block", "attention", "attention_options"),
    *MODERN_FIELDS,
)
_NAMES = tuple(field.name for field in fields(ModelConfig) if field.name not in _OURS)
# In config.json, and as an option group of a checkpoint: the detection head returns energies.
ENERGIES = "electric"
MULTI_LABEL = "multi_label_classification"  # a problem_type
NATIVE = "electra_albert"  # model_type of folders that only this package loads
_FORMAT = 1  # their version
_MAX_INTEGER = (1 << 31) - 1  # larger sizes overflow before they are compared with the weights
# Settings with only one supported value: others mean another computation, or custom code.
_ALWAYS: dict[str, Any] = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
    "quantization_config": None,
    "auto_map": {},
    "rope_scaling": None,
    "custom_pipelines": {},
}
TABLE = "embeddings.word_embeddings.weight"
_FUSED = "attention.qkv."
_PARTS = ("attention.query.", "attention.key.", "attention.value.")
_MAPPING = "encoder.embedding_hidden_mapping_in."
_POOLER = "pooler."
_ORDER_POOLER = "sentence_order.pooler."
_ORDER = "sentence_order.classifier."
_STOCK_ORDER = "sop_classifier.classifier."
_DECODER = "predictions.decoder.weight"
_DECODER_BIAS = "predictions.decoder.bias"
# Buffers of older files, not weights.
_COUNTERS = ("embeddings.position_ids", "embeddings.token_type_ids")
# Names of BERT, ELECTRA and files of 2019, and their stock ALBERT names without `albert.`,
# replaced in this order.
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
    (r"^(generator_predictions|cls\.predictions(\.transform)?)\.", "predictions."),
)
# Unsupported heads: BERT's next-sentence prediction, ELECTRA's sequence classification and
# multiple choice.
_FOREIGN = ("cls.seq_relationship", "classifier.dense", "classifier.out_proj", "sequence_summary")
_KNOWN = (
    *("embeddings.", "encoder.", _POOLER, "predictions.", _STOCK_ORDER),
    *("discriminator_predictions.", "classifier.", "electra_classifier.", "qa_outputs."),
    "prediction_head.",
)


def stock_config(
    config: ModelConfig, architecture: str, special_ids: Mapping[str, int]
) -> dict[str, Any]:
    """Contents of a stock config.json; special_ids: pad_token_id, bos_token_id, eos_token_id."""
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
    """Contents of config.json in our own format; shape: fields of ModelConfig.

    For models without a stock class.
    """
    return {"model_type": NATIVE, "format": _FORMAT, **shape}


def model_config(contents: Mapping[str, Any], source: str) -> ModelConfig:
    """Read a ModelConfig from config.json.

    Raises CheckpointError for another model type and for impossible values.
    """
    kind: Any = contents.get("model_type")
    is_native = kind == NATIVE
    if not is_native and kind not in ("albert", *RELATIVES, MODERNBERT):
        raise CheckpointError(
            f"{source} is of type {short_repr(kind)}; supported are albert, electra, bert and "
            "modernbert"
        )
    version = contents.get("format")
    if is_native and version != _FORMAT:
        raise CheckpointError(
            f"{source} has format {short_repr(version)}, this version reads {_FORMAT}"
        )
    always = _ALWAYS | {"residual_scale": 1} if is_native else _ALWAYS  # of earlier versions
    for name, supported in always.items():
        value = contents.get(name)
        if value not in (None, supported):
            raise CheckpointError(
                f"{name}={short_repr(value)} in {source} is not supported; name another model"
            )
    try:
        if kind == MODERNBERT:
            contents = modernbert.our_settings(contents)
            kind = NATIVE
        values = _values(contents, kind, source)
        activation = values["hidden_act"]
        if activation not in ACTIVATIONS:
            raise ValueError(
                f"hidden_act={short_repr(activation)} is not one of {', '.join(ACTIVATIONS)}"
            )
        config = ModelConfig(**values)
        make_mixing(config)
    except ValueError as error:
        raise CheckpointError(f"{source}: {error}") from None
    return config


def _values(contents: Mapping[str, Any], kind: str, source: str) -> dict[str, Any]:
    """Values of the fields of ModelConfig; missing keys get the stock class's defaults or ours."""
    from transformers import AutoConfig

    ours = ModelConfig()
    is_native = kind == NATIVE
    names = _NAMES + _OURS if is_native else _NAMES
    defaults = ours if is_native else AutoConfig.for_model(kind)
    values = {}
    for name in names:
        default = getattr(ours, name)
        value = contents.get(name, getattr(defaults, name, default))
        if type(value) is int and abs(value) > _MAX_INTEGER:
            raise CheckpointError(
                f"{name} in {source} is larger than {_MAX_INTEGER}; name another model"
            )
        if type(value) is int and type(default) is float:
            value = float(value)
        if type(value) is not type(default):
            raise CheckpointError(
                f"{name}={short_repr(value)} in {source} should be of type {type(default).__name__}"
            )
        values[name] = value
    if kind in RELATIVES:
        values |= {"num_hidden_groups": values["num_hidden_layers"], "inner_group_num": 1}
    if kind == "bert":
        values["embedding_size"] = values["hidden_size"]
    options = values.get("attention_options", {})
    if not all(type(value) in (int, float) for value in options.values()):
        raise CheckpointError(f"attention_options in {source} should map names to numbers")
    return values


def short_repr(value: object) -> str:
    """A value from a file for a message: short, without line breaks or terminal colours."""
    if isinstance(value, dict | list):
        return f"a {type(value).__name__}"
    return repr(value[:60] if isinstance(value, str) else value)


def stock_details(contents: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Task details of a fine-tuned stock model, as in TASK_FILE.

    Raises CheckpointError for any other model.
    """
    found = contents.get("architectures")
    architecture = str(found[0]) if isinstance(found, list) and found else ""
    kinds = {name.removeprefix("AlbertFor"): kind for kind, name in ARCHITECTURES.items()}
    kind = kinds.get(architecture.partition("For")[2])
    if kind is None:
        raise CheckpointError(
            f"{source}: architecture {short_repr(architecture)} is not fine-tuned; fine-tune it"
        )
    is_pooled = architecture.startswith("ModernBert") and kind in ("sequence", "choice")
    if is_pooled and contents.get("classifier_pooling") != "mean":
        raise CheckpointError(f"{source}: only pooling by the mean is supported; fine-tune again")
    problem_type = contents.get("problem_type")
    if problem_type not in (None, "regression", "single_label_classification", MULTI_LABEL):
        raise CheckpointError(
            f"problem_type={short_repr(problem_type)} in {source} is not supported; "
            "name another model"
        )
    labels: list[Any] = []
    if kind in ("sequence", "token"):
        names = contents.get("id2label", {"0": "LABEL_0", "1": "LABEL_1"})
        if isinstance(names, dict):
            labels = [names.get(str(number)) for number in range(len(names))]
        if not labels or not is_of_kind(labels, list[str]):
            raise CheckpointError(
                f"id2label in {source} does not name the labels 0 to {max(0, len(labels) - 1)}"
            )
    is_regression = problem_type == "regression" or (problem_type is None and len(labels) == 1)
    is_regression = is_regression and kind == "sequence"
    if is_regression and len(labels) != 1:
        raise CheckpointError(
            f"{source} describes a regression of {len(labels)} numbers; only one is supported"
        )
    return {
        "kind": kind,
        "style": MODERNBERT if contents["model_type"] == MODERNBERT else "albert",
        "labels": [] if is_regression else labels,
        "is_regression": is_regression,
        "is_multi_label": problem_type == MULTI_LABEL and kind == "sequence",
    }


def require_named(labels: Sequence[str], source: str) -> None:
    """Raise CheckpointError if the labels are LABEL_0, LABEL_1, ....

    The message begins with `source`.
    """
    if labels and list(labels) == [f"LABEL_{number}" for number in range(len(labels))]:
        raise CheckpointError(
            f"{source}: its labels have no names ({', '.join(labels[:2])}, ...); "
            "write id2label into its config.json"
        )


def classifier_dropout(contents: Mapping[str, Any]) -> Any:
    """Dropout before the output layer, as in stock.

    BERT and ELECTRA fall back to hidden_dropout_prob.
    """
    names = ["classifier_dropout_prob"]
    if contents.get("model_type") in (*RELATIVES, MODERNBERT):
        names = ["classifier_dropout", "hidden_dropout_prob"]
    values = [contents[name] for name in names if contents.get(name) is not None]
    return [*values, DEFAULT_DROPOUT][0]


def to_stock(state: State) -> dict[str, Tensor]:
    """Our state dict under stock names, as float32 copies on the CPU.

    The names are ALBERT's, and ELECTRA's for the detection head.
    """
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
    return {
        name: tensor.detach().to("cpu", torch.float32).clone() for name, tensor in state.items()
    }


def from_file(
    tensors: State, kind: str, config: ModelConfig, source: str
) -> tuple[dict[str, Tensor], list[str]]:
    """Tensors of model type `kind` by our names (poolers as `pooler.`), and unsupported heads.

    Raises CheckpointError for tensors that no such model has.
    """
    if kind == NATIVE:
        return {name.replace(_ORDER_POOLER, _POOLER): tensors[name] for name in tensors}, []
    if kind == MODERNBERT:
        tensors = modernbert.to_ours(tensors, config)
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        new_name = name.removeprefix(f"{kind}.")
        for pattern, replacement in _TO_ALBERT:
            new_name = re.sub(pattern, replacement, new_name)
        if new_name in renamed:
            raise CheckpointError(
                f"{source} contains {new_name} twice, also as {name}; name another model"
            )
        renamed[new_name] = tensor
    unsupported_heads = [head for head in _FOREIGN if _has(renamed, f"{head}.")]
    omitted = (*_COUNTERS, *(f"{head}." for head in unsupported_heads))
    for name in [name for name in renamed if name.startswith(omitted)]:
        del renamed[name]
    if kind == "electra" and config.hidden_act != "gelu" and _has(renamed, "predictions."):
        raise CheckpointError(
            f"{source} has ELECTRA's MLM head, which uses gelu, but hidden_act={config.hidden_act}"
        )
    if kind in RELATIVES and config.embedding_size == config.hidden_size:
        _add_projection(renamed, _MAPPING, config.hidden_size, source)
    if kind == MODERNBERT:
        _add_projection(renamed, f"{_MAPPING}dense.", config.hidden_size, source)
    decoder = renamed.pop(_DECODER, None)
    if decoder is not None and not torch.equal(decoder, renamed.get(TABLE, decoder)):
        raise CheckpointError(
            f"{source}: {_DECODER} differs from the word embeddings; only tied ones are supported"
        )
    if _DECODER_BIAS in renamed:  # overrides predictions.bias
        renamed["predictions.bias"] = renamed.pop(_DECODER_BIAS)
    return _fused(renamed, kind, source), unsupported_heads


def _add_projection(tensors: dict[str, Tensor], prefix: str, width: int, source: str) -> None:
    """Add the identity as projection E to D, which these models do not have."""
    if _has(tensors, prefix):
        raise CheckpointError(
            f"{source} projects embeddings, which stock does not do if E = D; get another file"
        )
    if width**2 < sum(tensor.numel() for tensor in tensors.values()):  # else a wrong width
        tensors[f"{prefix}weight"] = torch.eye(width)
        tensors[f"{prefix}bias"] = torch.zeros(width)


def _has(tensors: State, prefix: str) -> bool:
    return any(name.startswith(prefix) for name in tensors)


def for_order_head(state: State) -> dict[str, Tensor]:
    """Rename the pooler to that of a sentence-order head."""
    return {re.sub(r"^pooler\.", _ORDER_POOLER, name): tensor for name, tensor in state.items()}


def _fused(tensors: State, kind: str, source: str) -> dict[str, Tensor]:
    """Concatenate query, key and value of each block, and rename the order head's linear layer."""
    fused: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        is_fused = _FUSED in name and kind != MODERNBERT
        if not name.startswith(_KNOWN) or is_fused:
            raise CheckpointError(
                f"{source} contains {name}, which no supported {kind} model has; name another model"
            )
        if not tensor.is_floating_point():
            raise CheckpointError(
                f"{source}: {name} is {tensor.dtype}, not floating point; get another file"
            )
        part = next((part for part in _PARTS if part in name), None)
        if part is None:
            fused[name.replace(_STOCK_ORDER, _ORDER)] = tensor
            continue
        names = [name.replace(part, third) for third in _PARTS]
        thirds = [tensors[name] for name in names if name in tensors]
        if not tensor.ndim or [third.shape for third in thirds] != [tensor.shape] * len(_PARTS):
            raise CheckpointError(
                f"{source} lacks query, key and value of one shape for {name}; get another file"
            )
        if part == _PARTS[0]:
            fused[name.replace(part, _FUSED)] = torch.cat(thirds)
    return fused
