"""Our models and their twins, stock transformers models with the same weights, and how the two are
compared.

All sizes differ and are odd where possible, so that a transposed or swapped dimension raises an
error. Dimensions: B batch, L length, V vocab, D hidden.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
import transformers
from torch import Tensor, nn
from transformers.models.electra.modeling_electra import ElectraDiscriminatorPredictions

from electra_albert.config.model import ModelConfig
from electra_albert.contracts import Batch
from electra_albert.hub.formats import stock_config, to_stock
from electra_albert.model.electra import Discriminator, Electra, Generator, initialize_models
from electra_albert.model.encoder import EncoderModel
from tests.objectives.toy import make_batch

Module = TypeVar("Module", bound=nn.Module)
B, L = 3, 13
# The initializer_range is wide enough for uneven attention and nonlinear activations.
SHAPE = ModelConfig(
    vocab_size=53,
    embedding_size=11,
    hidden_size=21,
    intermediate_size=37,
    num_hidden_layers=6,
    num_attention_heads=3,
    max_position_embeddings=17,
    initializer_range=0.3,
)
SPECIAL_IDS = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
LENGTHS = (L, 8, 3)


def padded_batch() -> Batch:
    """Sequences of different lengths with two segments each and no padding ids inside."""
    return make_batch(LENGTHS, L, SHAPE.vocab_size)


def drawn(make: Callable[[], Module], seed: int = 5) -> Module:
    """A model in eval mode with random biases around zero and random LayerNorm scales around one.

    No parameter is hidden by a zero or a one. Larger biases would make the hidden states of all
    tokens equal.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = make().eval()
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                mean = float(name.lower().endswith("norm.weight"))
                nn.init.normal_(parameter, mean=mean, std=0.2)
    return model


def make_pair(config: ModelConfig, seed: int = 5, **heads: bool) -> Electra:
    return drawn(lambda: Electra(config, config, **heads), seed)


def make_masked_lm(
    config: ModelConfig, seed: int = 5, *, with_sentence_order: bool = True
) -> Generator:
    def make() -> Generator:
        generator = Generator(config, with_sentence_order=with_sentence_order)
        initialize_models(generator)
        return generator

    return drawn(make, seed)


def make_encoder(config: ModelConfig, seed: int = 5, *, with_pooler: bool) -> EncoderModel:
    def make() -> EncoderModel:
        encoder = EncoderModel(config, with_pooler=with_pooler)
        for parameter in encoder.parameters():
            nn.init.normal_(parameter, std=config.initializer_range)
        return encoder

    return drawn(make, seed)


def load_twin(twin: nn.Module, ours: Any) -> nn.Module:
    """Load our weights into a stock module; only the tied decoder may be missing."""
    missing, unexpected = twin.load_state_dict(to_stock(ours.state_dict()), strict=False)
    assert not [name for name in missing if not name.startswith("predictions.decoder.")]
    assert not unexpected, unexpected
    return twin.eval()


def stock(config: ModelConfig, **changes: Any) -> Any:
    """The stock configuration of the same shape, with eager attention."""
    contents = stock_config(config, "AlbertForMaskedLM", SPECIAL_IDS)
    for key in ("architectures", "model_type", "dtype"):
        contents.pop(key)
    return transformers.AlbertConfig(**(contents | changes), attn_implementation="eager")


def masked_lm_twin(generator: Generator) -> nn.Module:
    """Stock AlbertForMaskedLM or, with a sentence-order head, AlbertForPreTraining."""
    config = stock(generator.config)
    if generator.sentence_order is None:
        return load_twin(transformers.AlbertForMaskedLM(config), generator)
    return load_twin(transformers.AlbertForPreTraining(config), generator)


def encoder_twin(encoder: EncoderModel) -> nn.Module:
    has_pooler = encoder.pooler is not None
    twin = transformers.AlbertModel(stock(encoder.config), add_pooling_layer=has_pooler)
    load_twin(nn.ModuleDict({"albert": twin}), encoder)
    return twin


def stock_discriminator(discriminator: Discriminator) -> nn.Module:
    """Stock ElectraForPreTraining on a stock AlbertModel, with the discriminator's weights."""
    config = stock(discriminator.config)
    albert = transformers.AlbertModel(config, add_pooling_layer=False)
    head = ElectraDiscriminatorPredictions(config)
    load_twin(nn.ModuleDict({"albert": albert, "discriminator_predictions": head}), discriminator)
    small = transformers.ElectraConfig(hidden_size=4, num_hidden_layers=1, num_attention_heads=1)
    twin = transformers.ElectraForPreTraining(small)
    twin.electra, twin.discriminator_predictions = albert, head
    return twin.eval()


def gradients(module: nn.Module) -> dict[str, Tensor]:
    """Gradients of our model or of its twin under our names, with query, key and value in one
    matrix.
    """
    by_name: dict[str, Any] = {name: tensor.grad for name, tensor in module.named_parameters()}
    ours: dict[str, Tensor] = {}
    for stock_name, gradient in by_name.items():
        name = stock_name.removeprefix("albert.").removeprefix("electra.")
        name = name.replace("sop_classifier.", "sentence_order.")
        name = name.replace("sentence_order.pooler.", "pooler.")
        assert gradient is not None, f"{name} has no gradient"
        if "attention.query." in name:
            parts = [
                by_name[stock_name.replace("query", part)] for part in ("query", "key", "value")
            ]
            ours[name.replace("query", "qkv")] = torch.cat(parts)
        elif "attention.key." not in name and "attention.value." not in name:
            ours[name] = gradient
    return ours


def assert_same_outputs(ours: Tensor, stock_output: Tensor) -> None:
    """Float64: within 1e-9 of the tensor's norm.

    Float32: every value within 1e-5, relative to values above one.
    """
    assert ours.shape == stock_output.shape
    difference = ours.detach() - stock_output.detach()
    if ours.dtype == torch.float64:
        assert difference.norm() <= 1e-9 * stock_output.norm()
    else:
        assert difference.abs().max() <= 1e-5 * stock_output.abs().max().clamp(min=1.0)


def assert_same_gradients(
    ours: Mapping[str, Tensor], stock_gradients: Mapping[str, Tensor]
) -> None:
    """Float64: each within 1e-9 of its own norm.

    Float32: each within 1e-4 of the whole gradient's norm.
    """
    assert ours.keys() == stock_gradients.keys()
    whole = torch.stack([gradient.norm() for gradient in stock_gradients.values()]).norm()
    for name, gradient in stock_gradients.items():
        difference = (ours[name] - gradient).norm()
        allowed = 1e-9 * gradient.norm() if gradient.dtype == torch.float64 else 1e-4 * whole
        assert difference <= allowed, f"{name}: {difference} > {allowed}"
