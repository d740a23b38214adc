"""Growth: weights of a larger model from those of a smaller one of the same family, as state dicts by our names.

Wider: hidden features, embeddings, heads and inner features are repeated, and the weights of each layer that reads them
are divided among the copies, so that the outputs stay the same. More groups: each is a copy. Deeper: with as many
groups each is applied more often, with more groups layer l copies layer l modulo the depth of the smaller model.
Longer: position embeddings are continued by the sinusoids that fit them best, and the old ones stay.
Papers: Chen et al. 2016 (Net2Net); Gong et al. 2019 (progressive stacking); Chen et al. 2022 (bert2BERT).
"""

import re
from collections.abc import Mapping
from dataclasses import asdict
from zlib import crc32

import torch
from torch import Tensor

from electra_albert.config import ModelConfig
from electra_albert.keyed_random import Stream, bits, derived_seed, uniform
from electra_albert.model.attention import mixing_shapes
from electra_albert.model.initialization import sinusoids

_HIDDEN, _EMBEDDING, _INNER = _WIDTHS = "hidden_size", "embedding_size", "intermediate_size"
_DEPTH, _POSITIONS = "num_hidden_layers", "max_position_embeddings"
_SIZES = (_DEPTH, "num_hidden_groups", *_WIDTHS, "num_attention_heads", _POSITIONS)
_GROUP = re.compile(r"(encoder\.albert_layer_groups\.)(\d+)(\..+)")
_POSITION_TABLE = "embeddings.position_embeddings.weight"
_TABLES = "_embeddings.weight"  # [rows, E]: repeated columns, as a layer's output
# Parts of names: the widths that a layer writes (None: not repeated) and reads. The first match counts.
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
    "predictions.LayerNorm.": (None, _EMBEDDING),  # divided, because the decoder's token embeddings are repeated
}


def source_groups(old: ModelConfig, new: ModelConfig) -> list[int]:
    """The group of the old model that each group of the new one copies. Raises ValueError if it would be several."""
    if new.num_hidden_groups == old.num_hidden_groups:
        return [*range(old.num_hidden_groups)]
    size, old_size = (one.num_hidden_layers // one.num_hidden_groups for one in (new, old))
    copied = [layer % old.num_hidden_layers // old_size for layer in range(new.num_hidden_layers)]
    groups = [copied[first : first + size] for first in range(0, len(copied), size)]
    if any(len({*group}) > 1 for group in groups):
        wanted = f"num_hidden_groups={new.num_hidden_groups} with num_hidden_layers={new.num_hidden_layers}"
        raise ValueError(f"{wanted}: a group would copy several of the {old.num_hidden_groups} groups")
    return [group[0] for group in groups]


def describe(old: ModelConfig, new: ModelConfig) -> str:
    """Description of the growth from `old` to `new`, empty for equal sizes. Raises ValueError if it is impossible."""
    before, after = asdict(old), asdict(new)
    for name in _WIDTHS:
        if after[name] % before[name]:
            raise ValueError(f"{name}={after[name]} is not a multiple of {before[name]}")
    if new.head_size != old.head_size:
        heads = new.hidden_size // old.head_size
        raise ValueError(f"num_attention_heads={new.num_attention_heads} changes the size of a head; give {heads}")
    if new.inner_group_num != old.inner_group_num:
        raise ValueError(f"inner_group_num={new.inner_group_num} is not {old.inner_group_num}")
    for name in (_DEPTH, _POSITIONS):
        if after[name] < before[name]:
            raise ValueError(f"{name}={after[name]} is less than {before[name]}")
    if mixing_shapes(new) != mixing_shapes(old):
        raise ValueError(f"the own weights of attention {new.attention} do not fit the new sizes")
    groups = source_groups(old, new)
    if not (changes := [f"{name} {before[name]} to {after[name]}" for name in _SIZES if before[name] != after[name]]):
        return ""
    if len(groups) > old.num_hidden_groups:
        changes.append(f"groups copied from groups {' '.join(map(str, groups))}")
    outputs = "other outputs, since it is deeper" if after[_DEPTH] > before[_DEPTH] else "the same outputs"
    if after[_POSITIONS] > before[_POSITIONS]:
        outputs += f", up to {before[_POSITIONS]} tokens"
    return f"{', '.join(changes)}; {outputs}"


def grow(state: Mapping[str, Tensor], old: ModelConfig, new: ModelConfig, seed: int) -> dict[str, Tensor]:
    """The tensors of a new model from those of an old one, any float on the CPU, for sizes that `describe` accepts.

    `seed` determines the shares. Tensors of unknown names, such as those of an attention kind, are kept as they are.
    """
    times = {name: getattr(new, name) // getattr(old, name) for name in _WIDTHS}
    groups, grown = source_groups(old, new), dict[str, Tensor]()
    for name, tensor in state.items():
        found, names = _GROUP.fullmatch(name), [name]
        if found:
            start, source, rest = found.groups()
            names = [f"{start}{group}{rest}" for group, copied in enumerate(groups) if copied == int(source)]
        if name == _POSITION_TABLE:
            tensor = _continue_positions(tensor, old, new.max_position_embeddings)
        grown |= {each: _widen(each, tensor, times, seed) for each in names}
    return grown


def _continue_positions(table: Tensor, old: ModelConfig, count: int) -> Tensor:
    """A table [count, E] that continues the old one [P, E] by its ridge regression on sinusoids."""
    waves = sinusoids(torch.arange(count), old).double()  # [count, W]
    known = waves[: len(table)]
    weights = torch.linalg.solve(known.T @ known + torch.eye(waves.shape[1]), known.T @ table.double())  # [W, E]
    return torch.cat([table, (waves[len(table) :] @ weights).to(table.dtype)])


def _widen(name: str, tensor: Tensor, times: Mapping[str, int], seed: int) -> Tensor:
    """Repeat a layer's rows, and its columns in shares of the old weights: [out, in] -> [out x times, in x times]."""
    if name.endswith(_TABLES):
        return torch.cat([tensor] * times[_EMBEDDING], dim=-1)
    rows, columns = next((widths for part, widths in _LAYERS.items() if part in name), (None, None))
    if rows is not None:
        parts = tensor.chunk(3 if "attention.qkv." in name else 1)
        tensor = torch.cat([part for part in parts for _ in range(times[rows])])
    is_read = columns is not None and (tensor.ndim == 2 or rows is None)  # not a bias
    if not is_read or (number := times[str(columns)]) == 1:
        return tensor
    # Differs from Net2Net, which divides equally and adds noise: copies with equal shares would get equal gradients and
    # stay equal for ever, and random shares that sum to one keep the outputs exactly.
    key, width = derived_seed(seed, Stream.INITIAL_WEIGHTS, crc32(name.encode())), tensor.shape[-1]
    row, column = torch.arange(tensor.numel() // width)[:, None], torch.arange(number * width)
    drawn = 0.5 + uniform(bits(key, Stream.INITIAL_WEIGHTS, row, column)).double().view(-1, number, width)
    divided = tensor.reshape(-1, 1, width) * (drawn / drawn.sum(1, keepdim=True))  # [out, times, in]
    return divided.view(*tensor.shape[:-1], number * width).to(tensor.dtype)
