"""Names and shapes of Google's TensorFlow 1 ALBERT checkpoints, the released ones of v1 and v2.

Kernels lie [in, out] there and [out, in] here. Where E equals D Google's code has no mapping between the two; ours is
then the identity.
Dimensions: V vocab, P positions, T segments, E embedding, D hidden, I intermediate, C classes of the sentence order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from electra_albert.config import ModelConfig
from electra_albert.contracts import CheckpointError
from electra_albert.model.stock_config import model_config, shown

_HUB_PREFIX = "module/"  # of what was loaded from a TensorFlow Hub module and saved again
_COUNTER = "global_step"
_LONGEST_NAME = 200  # that is shown whole
_OPTIMIZER_ENDINGS = ("/adam_m", "/adam_v")  # LAMB's too
_MAPPING = "encoder.embedding_hidden_mapping_in"
# Scopes of Google's code, each with the stock module it becomes. Of tables and weights that are no kernels: dimensions.
_TABLES = {
    "bert/embeddings/word_embeddings": ("albert.embeddings.word_embeddings.weight", "VE"),
    "bert/embeddings/position_embeddings": ("albert.embeddings.position_embeddings.weight", "PE"),
    "bert/embeddings/token_type_embeddings": ("albert.embeddings.token_type_embeddings.weight", "TE"),
    "cls/predictions/output_bias": ("predictions.bias", "V"),
}
_ORDER = {
    "cls/seq_relationship/output_weights": ("sop_classifier.classifier.weight", "CD"),
    "cls/seq_relationship/output_bias": ("sop_classifier.classifier.bias", "C"),
}
# Dense layers by the dimensions of their kernels, in and out; norms by their width.
_DENSE = {"cls/predictions/transform/dense": ("predictions.dense", "DE")}
_NORMS = {
    "bert/embeddings/LayerNorm": ("albert.embeddings.LayerNorm", "E"),
    "cls/predictions/transform/LayerNorm": ("predictions.LayerNorm", "E"),
}
_MAPPING_DENSE = {"bert/encoder/embedding_hidden_mapping_in": (f"albert.{_MAPPING}", "ED")}
_POOLER_DENSE = {"bert/pooler/dense": ("albert.pooler", "DD")}
_BLOCK_DENSE = {
    "attention_1/self/query": ("attention.query", "DD"),
    "attention_1/self/key": ("attention.key", "DD"),
    "attention_1/self/value": ("attention.value", "DD"),
    "attention_1/output/dense": ("attention.dense", "DD"),
    "ffn_1/intermediate/dense": ("ffn", "DI"),
    "ffn_1/intermediate/output/dense": ("ffn_output", "ID"),
}
_BLOCK_NORMS = {"LayerNorm": ("attention.LayerNorm", "D"), "LayerNorm_1": ("full_layer_layer_norm", "D")}
_ACTIVATIONS = {"gelu": "gelu_new", "gelu_new": "gelu_new", "relu": "relu"}  # Google's gelu is the tanh approximation
_NEEDED = (
    "vocab_size",
    "embedding_size",
    "hidden_size",
    "num_hidden_layers",
    "num_hidden_groups",
    "num_attention_heads",
    "intermediate_size",
)
# Keys of variants that were never released, with the values that mean plain ALBERT.
_PLAIN: dict[str, tuple[Any, ...]] = {
    "net_structure_type": (0,),
    "gap_size": (0,),
    "num_memory_blocks": (0,),
    "down_scale_factor": (1,),
    "layers_to_keep": ([],),
}


class Variable(NamedTuple):
    """What a variable of a checkpoint becomes."""

    stock_name: str  # of AlbertForPreTraining
    shape: tuple[int, ...]  # in the checkpoint
    is_kernel: bool  # to be transposed


def tensorflow_config(contents: Mapping[str, Any], origin: str) -> ModelConfig:
    """The shape an albert_config.json describes; CheckpointError, naming `origin`, where it is none or cannot be."""
    missing = [name for name in _NEEDED if name not in contents]
    if missing:
        raise CheckpointError(f"{origin} has no {missing[0]}: it is no albert_config.json of Google's ALBERT")
    for name, plain in _PLAIN.items():
        if name in contents and contents[name] not in plain:
            raise CheckpointError(
                f"{name}={shown(contents[name])} in {origin} is a variant of ALBERT that cannot be read"
            )
    activation = contents.get("hidden_act", "gelu")
    if not isinstance(activation, str) or activation.lower() not in _ACTIVATIONS:
        raise CheckpointError(f"hidden_act={shown(activation)} in {origin} is not one of {', '.join(_ACTIVATIONS)}")
    stock = {"model_type": "albert", **contents, "hidden_act": _ACTIVATIONS[activation.lower()]}
    if stock["model_type"] != "albert":
        raise CheckpointError(f"{origin} describes a model of type {shown(stock['model_type'])}, not albert")
    config = model_config(stock, origin)
    layers, groups = config.num_hidden_layers, config.num_hidden_groups
    # Google's code finds the group of a layer by a quotient and a product of floats, which can end one group too low.
    if any(int(layer / layers * groups) != layer // (layers // groups) for layer in range(layers)):
        raise CheckpointError(
            f"{origin}: with num_hidden_layers={layers} and num_hidden_groups={groups} Google's code rounds a layer "
            "into a neighbouring group, which no stock model does; such a checkpoint cannot be read"
        )
    return config


def is_of_the_optimizer(name: str) -> bool:
    """Whether a variable is a moment of the optimiser or the count of steps, which a model has no place for."""
    return name.endswith(_OPTIMIZER_ENDINGS) or name.removeprefix(_HUB_PREFIX) == _COUNTER


def find_variables(shapes: Mapping[str, Sequence[int]], config: ModelConfig, origin: str) -> dict[str, Variable]:
    """What each variable of a checkpoint becomes, but for those of the optimiser, found by names and shapes alone.

    The sentence-order head and the pooler may each be missing whole. Raises CheckpointError, naming `origin` and the
    variable, where one is missing, unknown, there twice, or of another shape than `config` says.
    """
    found: dict[str, str] = {}
    for name in sorted(shapes):
        plain = name.removeprefix(_HUB_PREFIX)
        if plain in found:
            raise CheckpointError(f"{origin} holds both {_told(found[plain])} and {_told(name)}; it mixes two models")
        if not is_of_the_optimizer(name):
            found[plain] = name
    blocks = config.num_hidden_groups * config.inner_group_num
    if blocks > len(found):  # a false configuration must not cost minutes
        raise CheckpointError(f"{origin} holds {len(found)} variables, its configuration describes {blocks} blocks")
    optional = (_tables(_ORDER, config), _dense(_POOLER_DENSE, config))
    expected = _always(config)
    for part in map(dict, optional):
        expected |= part if part.keys() & found.keys() else {}
    unknown = sorted(found.keys() - expected.keys())
    if unknown:
        raise CheckpointError(
            f"{origin} holds {_told(found[unknown[0]])}, which Google's ALBERT of this configuration has not; "
            "name a checkpoint of its pretraining in TensorFlow 1"
        )
    missing = sorted(expected.keys() - found.keys())
    if missing:
        raise CheckpointError(f"{origin} has no {missing[0]} ({len(missing)} of {len(expected)} variables are missing)")
    for plain, variable in expected.items():
        shape = list(shapes[found[plain]])
        if shape != list(variable.shape):
            wanted = list(variable.shape)
            raise CheckpointError(f"{found[plain]} in {origin} has shape {shape}, its configuration says {wanted}")
    return {found[plain]: variable for plain, variable in expected.items()}


def _told(name: str) -> str:
    """A variable's name as an error line shows it: as it is where that can be shown."""
    return name if name.isprintable() and len(name) <= _LONGEST_NAME else shown(name)


def stock_tensors(variables: Mapping[str, np.ndarray], config: ModelConfig, origin: str) -> dict[str, Tensor]:
    """The tensors of stock AlbertForPreTraining, float32, out of the variables of a checkpoint.

    Variables of the optimiser are left aside. Raises CheckpointError as find_variables does, and where a variable is
    of no floating-point type or holds values that are not finite.
    """
    shapes = {name: values.shape for name, values in variables.items()}
    stock = {}
    for name, variable in find_variables(shapes, config, origin).items():
        values = variables[name]
        if values.dtype.kind != "f":
            raise CheckpointError(f"{name} in {origin} is of type {values.dtype}, not float32")
        with np.errstate(over="ignore"):  # what does not fit into float32 is refused below
            tensor = torch.from_numpy(np.array(values.T if variable.is_kernel else values, np.float32, order="C"))
        if not tensor.isfinite().all():
            raise CheckpointError(f"{name} in {origin} holds values that are not finite; the model diverged")
        stock[variable.stock_name] = tensor
    if config.embedding_size == config.hidden_size:
        stock[f"albert.{_MAPPING}.weight"] = torch.eye(config.hidden_size)
        stock[f"albert.{_MAPPING}.bias"] = torch.zeros(config.hidden_size)
    return stock


def _always(config: ModelConfig) -> dict[str, Variable]:
    """What every checkpoint of pretraining holds."""
    expected = dict(_tables(_TABLES, config)) | dict(_dense(_DENSE, config)) | dict(_norms(_NORMS, config))
    if config.embedding_size != config.hidden_size:
        expected |= _dense(_MAPPING_DENSE, config)
    for group in range(config.num_hidden_groups):
        for inner in range(config.inner_group_num):
            scope = f"bert/encoder/transformer/group_{group}/inner_group_{inner}/"
            module = f"albert.encoder.albert_layer_groups.{group}.albert_layers.{inner}."
            expected |= _dense(_BLOCK_DENSE, config, scope, module)
            expected |= _norms(_BLOCK_NORMS, config, scope, module)
    return expected


_Places = Mapping[str, tuple[str, str]]
_Found = Iterator[tuple[str, Variable]]


def _shape(dimensions: str, config: ModelConfig) -> tuple[int, ...]:
    sizes = {
        "V": config.vocab_size,
        "P": config.max_position_embeddings,
        "T": config.type_vocab_size,
        "E": config.embedding_size,
        "D": config.hidden_size,
        "I": config.intermediate_size,
        "C": 2,
    }
    return tuple(sizes[dimension] for dimension in dimensions)


def _tables(places: _Places, config: ModelConfig) -> _Found:
    for name, (stock_name, dimensions) in places.items():
        yield name, Variable(stock_name, _shape(dimensions, config), False)


def _dense(places: _Places, config: ModelConfig, scope: str = "", module: str = "") -> _Found:
    for name, (stock_name, dimensions) in places.items():
        yield f"{scope}{name}/kernel", Variable(f"{module}{stock_name}.weight", _shape(dimensions, config), True)
        yield f"{scope}{name}/bias", Variable(f"{module}{stock_name}.bias", _shape(dimensions[1], config), False)


def _norms(places: _Places, config: ModelConfig, scope: str = "", module: str = "") -> _Found:
    for name, (stock_name, width) in places.items():
        yield f"{scope}{name}/gamma", Variable(f"{module}{stock_name}.weight", _shape(width, config), False)
        yield f"{scope}{name}/beta", Variable(f"{module}{stock_name}.bias", _shape(width, config), False)
