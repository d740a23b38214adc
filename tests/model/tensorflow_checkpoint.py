"""What Google's code writes in TensorFlow 1: the names and shapes of its variables, and the model in plain NumPy.

Dimensions: B rows, L length, N heads, V vocabulary, P positions, T segments, E embedding, D hidden, I intermediate.
"""

from __future__ import annotations

import numpy as np

from electra_albert.config import ModelConfig
from electra_albert.contracts import Batch

# Written down from the logs of those who listed the released files, and not from the table under test.
AROUND = """
bert/embeddings/LayerNorm/beta E
bert/embeddings/LayerNorm/gamma E
bert/embeddings/position_embeddings PxE
bert/embeddings/token_type_embeddings TxE
bert/embeddings/word_embeddings VxE
bert/encoder/embedding_hidden_mapping_in/bias D
bert/encoder/embedding_hidden_mapping_in/kernel ExD
bert/pooler/dense/bias D
bert/pooler/dense/kernel DxD
cls/predictions/output_bias V
cls/predictions/transform/LayerNorm/beta E
cls/predictions/transform/LayerNorm/gamma E
cls/predictions/transform/dense/bias E
cls/predictions/transform/dense/kernel DxE
cls/seq_relationship/output_bias 2
cls/seq_relationship/output_weights 2xD
"""
BLOCK = """
LayerNorm/beta D
LayerNorm/gamma D
LayerNorm_1/beta D
LayerNorm_1/gamma D
attention_1/output/dense/bias D
attention_1/output/dense/kernel DxD
attention_1/self/key/bias D
attention_1/self/key/kernel DxD
attention_1/self/query/bias D
attention_1/self/query/kernel DxD
attention_1/self/value/bias D
attention_1/self/value/kernel DxD
ffn_1/intermediate/dense/bias I
ffn_1/intermediate/dense/kernel DxI
ffn_1/intermediate/output/dense/bias D
ffn_1/intermediate/output/dense/kernel IxD
"""
ENCODER = "bert/encoder/transformer"


def published_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every variable of the model, without those of the optimiser."""
    sizes = {
        "V": config.vocab_size,
        "P": config.max_position_embeddings,
        "T": config.type_vocab_size,
        "E": config.embedding_size,
        "D": config.hidden_size,
        "I": config.intermediate_size,
        "2": 2,
    }
    lines = AROUND.split("\n")
    for group in range(config.num_hidden_groups):
        for inner in range(config.inner_group_num):
            lines += [line and f"{ENCODER}/group_{group}/inner_group_{inner}/{line}" for line in BLOCK.split("\n")]
    named = dict(line.split() for line in lines if line)
    if config.embedding_size == config.hidden_size:
        named = {name: shape for name, shape in named.items() if "hidden_mapping" not in name}
    return {name: tuple(sizes[size] for size in shape.split("x")) for name, shape in named.items()}


def made_variables(config: ModelConfig, seed: int = 3) -> dict[str, np.ndarray]:
    """Drawn values under the published names, wide enough that attention is not uniform and none is hidden."""
    draw = np.random.default_rng(seed)
    shapes = published_shapes(config)
    return {name: draw.normal(0.1, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}


def with_optimizer(variables: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same with the moments of LAMB and the count of steps, as a checkpoint of training holds them."""
    moments = {f"{name}/{kind}": values * 0 for name, values in variables.items() for kind in ("adam_m", "adam_v")}
    return {**variables, **moments, "global_step": np.array(125_000)}


def plain_forward(variables: dict[str, np.ndarray], config: ModelConfig, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """Scores of tokens [B, L, V] and of the sentence order [B, 2] in float64, with kernels as they lie in the file."""
    values = {name: array.astype(np.float64) for name, array in variables.items()}
    ids, mask, segments = (field.numpy() for field in batch[:3])
    length = ids.shape[1]
    table = values["bert/embeddings/word_embeddings"]
    hidden = table[ids] + values["bert/embeddings/token_type_embeddings"][segments]
    hidden = _norm(values, "bert/embeddings/LayerNorm", hidden + values["bert/embeddings/position_embeddings"][:length])
    if "bert/encoder/embedding_hidden_mapping_in/kernel" in values:
        hidden = _dense(values, "bert/encoder/embedding_hidden_mapping_in", hidden)
    for layer in range(config.num_hidden_layers):
        group = layer * config.num_hidden_groups // config.num_hidden_layers
        for inner in range(config.inner_group_num):
            scope = f"{ENCODER}/group_{group}/inner_group_{inner}/"
            own = {name.removeprefix(scope): array for name, array in values.items() if name.startswith(scope)}
            hidden = _block(own, hidden, mask, config.num_attention_heads)
    transformed = _gelu(_dense(values, "cls/predictions/transform/dense", hidden))
    transformed = _norm(values, "cls/predictions/transform/LayerNorm", transformed)
    pooled = np.tanh(_dense(values, "bert/pooler/dense", hidden[:, 0]))
    order = pooled @ values["cls/seq_relationship/output_weights"].T + values["cls/seq_relationship/output_bias"]
    return transformed @ table.T + values["cls/predictions/output_bias"], order


def _block(values: dict[str, np.ndarray], hidden: np.ndarray, mask: np.ndarray, heads: int) -> np.ndarray:
    rows, length, width = hidden.shape

    def split(name: str) -> np.ndarray:
        projected = _dense(values, f"attention_1/self/{name}", hidden)
        return projected.reshape(rows, length, heads, width // heads).transpose(0, 2, 1, 3)  # [B, N, L, D / N]

    scores = split("query") @ split("key").transpose(0, 1, 3, 2) / np.sqrt(width // heads)
    scores = np.where(mask[:, None, None, :], scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = (weights / weights.sum(-1, keepdims=True)) @ split("value")
    mixed = mixed.transpose(0, 2, 1, 3).reshape(rows, length, width)
    attended = _norm(values, "LayerNorm", hidden + _dense(values, "attention_1/output/dense", mixed))
    fed = _gelu(_dense(values, "ffn_1/intermediate/dense", attended))
    return _norm(values, "LayerNorm_1", attended + _dense(values, "ffn_1/intermediate/output/dense", fed))


def _dense(values: dict[str, np.ndarray], scope: str, x: np.ndarray) -> np.ndarray:
    return x @ values[f"{scope}/kernel"] + values[f"{scope}/bias"]


def _norm(values: dict[str, np.ndarray], scope: str, x: np.ndarray) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12)
    return centred / deviation * values[f"{scope}/gamma"] + values[f"{scope}/beta"]


def _gelu(x: np.ndarray) -> np.ndarray:
    return x * 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
