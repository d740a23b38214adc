"""Growth: weights of a larger model from those of a smaller one, as state dicts by our names.

Wider: hidden features, embeddings, heads and inner features are repeated, and the weights of each
layer that reads them are divided among the copies, so that the outputs stay the same:

    [a b]  three times as wide, as a layer's rows:     a b a b a b
           as columns, with random shares of sum 1:    .3a .2b .3a .5b .4a .3b

More groups: each is a copy. Deeper: with as many groups each is applied more often, with more
groups layer l copies layer l modulo the depth of the smaller model. Longer: position embeddings, if
there are any, are continued by the sinusoids that fit them best, and the old ones stay.
Papers: Chen et al. 2016 (Net2Net); Gong et al. 2019 (progressive stacking); Chen et al. 2022
(bert2BERT).
"""

import re
from collections.abc import Mapping
from zlib import crc32

import torch
from torch import Tensor

from electra_albert.config.model import ModelConfig
from electra_albert.keyed_random import Stream, bits, derived_seed, uniform
from electra_albert.model.initialization import sinusoids

_HIDDEN = "hidden_size"
_EMBEDDING = "embedding_size"
_INNER = "intermediate_size"
_WIDTHS = (_HIDDEN, _EMBEDDING, _INNER)
_DEPTH = "num_hidden_layers"
_POSITIONS = "max_position_embeddings"
_SIZES = (_DEPTH, "num_hidden_groups", *_WIDTHS, "num_attention_heads", _POSITIONS)
_GROUP = re.compile(r"(encoder\.albert_layer_groups\.)(\d+)(\..+)")
_POSITION_TABLE = "embeddings.position_embeddings.weight"
_TABLES = "_embeddings.weight"  # [rows, E]: repeated columns, as a layer's output
# Parts of names: the widths that a layer writes (None: not repeated) and reads; the first match.
_LAYERS: dict[str, tuple[str | None, str | None]] = {
    "embeddings.LayerNorm.": (_EMBEDDING, None),
    "embedding_hidden_mapping_in.": (_HIDDEN, _EMBEDDING),
    "attention.qkv.": (_HIDDEN, _HIDDEN),
    "attention.dense.": (_HIDDEN, _HIDDEN),
    "attention.LayerNorm.": (_HIDDEN, None),
    ".ffn.": (_INNER, _HIDDEN),
    ".ffn_output.": (_HIDDEN, _INNER),
    ".full_layer_layer_norm.": (_HIDDEN, None),
    "pooler.": (_HIDDEN, _HIDDEN),
    "classifier.weight": (None, _HIDDEN),
    "discriminator_predictions.dense.": (_HIDDEN, _HIDDEN),
    "dense_prediction.weight": (None, _HIDDEN),
    "predictions.dense.": (_EMBEDDING, _HIDDEN),
    "predictions.LayerNorm.": (None, _EMBEDDING),  # divided: the decoder's embeddings are repeated
}


def source_groups(old: ModelConfig, new: ModelConfig) -> list[int]:
    """The group of the old model that each group of the new one copies.

    Raises ValueError if a group would copy several.
    """
    if new.num_hidden_groups == old.num_hidden_groups:
        return list(range(old.num_hidden_groups))
    layers = range(new.num_hidden_layers)
    by_layer = [layer % old.num_hidden_layers // old.group_size for layer in layers]
    sources = by_layer[:: new.group_size]
    if by_layer != [sources[layer // new.group_size] for layer in layers]:
        raise ValueError(
            f"num_hidden_groups={new.num_hidden_groups} with "
            f"num_hidden_layers={new.num_hidden_layers}: "
            f"a group would copy several of the {old.num_hidden_groups} groups"
        )
    return sources


def describe(old: ModelConfig, new: ModelConfig) -> str:
    """Description of the growth from `old` to `new`, empty for equal sizes.

    Raises ValueError if it is impossible.
    """
    before = vars(old)
    after = vars(new)
    for name in _WIDTHS:
        if after[name] % before[name]:
            raise ValueError(f"{name}={after[name]} is not a multiple of {before[name]}")
        if after[name] != before[name] and new.block == "modern":
            raise ValueError(f"{name}={after[name]}: modern blocks cannot grow wider")
    if new.head_size != old.head_size:
        raise ValueError(
            f"num_attention_heads={new.num_attention_heads} changes the size of a head; "
            f"give {new.hidden_size // old.head_size}"
        )
    if new.inner_group_num != old.inner_group_num:
        raise ValueError(f"inner_group_num={new.inner_group_num} is not {old.inner_group_num}")
    for name in (_DEPTH, _POSITIONS):
        if after[name] < before[name]:
            raise ValueError(f"{name}={after[name]} is less than {before[name]}")
    groups = source_groups(old, new)
    for group, source in enumerate(groups):
        if new.is_global(group) != old.is_global(source):
            raise ValueError(
                f"num_hidden_groups={new.num_hidden_groups} with "
                f"num_hidden_layers={new.num_hidden_layers}: group {group} would copy {source}, "
                "and only one of them has a sliding window"
            )
    sizes = [name for name in _SIZES if before[name] != after[name]]
    if not sizes:
        return ""
    changes = [f"{name} {before[name]} to {after[name]}" for name in sizes]
    if len(groups) > old.num_hidden_groups:
        changes.append(f"groups copied from groups {' '.join(map(str, groups))}")
    outputs = "other outputs, since it is deeper" if _DEPTH in sizes else "the same outputs"
    if _POSITIONS in sizes and new.block == "albert":
        outputs += f", up to {old.max_position_embeddings} tokens"
    return f"{', '.join(changes)}; {outputs}"


def grow(
    state: Mapping[str, Tensor],
    old: ModelConfig,
    new: ModelConfig,
    seed: int,
) -> dict[str, Tensor]:
    """The tensors of a new model from those of an old one, for sizes that `describe` accepts.

    Tensors are any float on the CPU; those of unknown names are kept as they are. `seed` determines
    the shares.
    """
    times = {name: getattr(new, name) // getattr(old, name) for name in _WIDTHS}
    sources = source_groups(old, new)
    grown: dict[str, Tensor] = {}
    for name, tensor in state.items():
        names = [name]
        match = _GROUP.fullmatch(name)
        if match:
            start, source, rest = match.groups()
            names = [
                f"{start}{group}{rest}"
                for group, copied in enumerate(sources)
                if copied == int(source)
            ]
        elif name == _POSITION_TABLE:
            tensor = _continue_positions(tensor, old, new.max_position_embeddings)
        for new_name in names:
            grown[new_name] = _widen(new_name, tensor, times, seed)
    return grown


def _continue_positions(table: Tensor, old: ModelConfig, count: int) -> Tensor:
    """A table [count, E] that continues the old one [P, E] by its ridge regression on sinusoids."""
    waves = sinusoids(torch.arange(count), old).double()  # [count, W]
    known = waves[: len(table)]
    ridge = known.T @ known + torch.eye(waves.shape[1])
    weights = torch.linalg.solve(ridge, known.T @ table.double())  # [W, E]
    continued = waves[len(table) :] @ weights
    return torch.cat([table, continued.to(table.dtype)])


def _widen(name: str, tensor: Tensor, times: Mapping[str, int], seed: int) -> Tensor:
    """Repeat a layer's rows, and its columns in shares: [out, in] -> [out x times, in x times]."""
    if name.endswith(_TABLES):
        return torch.cat([tensor] * times[_EMBEDDING], dim=-1)
    widths = (widths for part, widths in _LAYERS.items() if part in name)
    rows, columns = next(widths, (None, None))
    if rows is not None:
        parts = tensor.chunk(3 if "attention.qkv." in name else 1)
        wider = [torch.cat([part] * times[rows]) for part in parts]
        tensor = torch.cat(wider)
    is_bias = tensor.ndim == 1 and rows is not None
    if columns is None or is_bias or times[columns] == 1:
        return tensor
    # Differs from Net2Net, which divides equally and adds noise: copies with equal shares would get
    # equal gradients and stay equal, and random shares that sum to one keep the outputs exactly.
    key = derived_seed(seed, Stream.INITIAL_WEIGHTS, crc32(name.encode()))
    copies = times[columns]
    width = tensor.shape[-1]
    row = torch.arange(tensor.numel() // width)[:, None]
    column = torch.arange(copies * width)
    noise = uniform(bits(key, Stream.INITIAL_WEIGHTS, row, column))
    weights = 0.5 + noise.double().view(-1, copies, width)
    shares = weights / weights.sum(1, keepdim=True)  # [out, times, in]
    divided = tensor.reshape(-1, 1, width) * shares
    divided = divided.view(*tensor.shape[:-1], -1)
    return divided.to(tensor.dtype)
