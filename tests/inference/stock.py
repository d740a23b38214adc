"""Small stock models in folders, and their inputs for a text."""

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from tests.tokenization.tokenizer_kinds import save_bert, wordpiece_vocab

# float32: two implementations, or batches of other shapes, add up in another order
TOLERANCE = 1e-5
NATS_TOLERANCE = 1e-4  # of a sum of a dozen log-softmax values over the vocabulary
LONGEST = 43
_SEED = 11


def make_stock(folder: Path, name: str, **more: Any) -> Any:
    """Write a stock folder with a BERT tokenizer; returns the stock model."""
    sizes = {
        "hidden_size": 28,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 37,
    }
    sizes |= {
        "pad_token_id": wordpiece_vocab(True)["[PAD]"],
        "vocab_size": len(wordpiece_vocab(True)),
    }
    if name.startswith("Albert"):
        sizes["embedding_size"] = 11
    kind = getattr(transformers, name)
    # Wide, for predictions far from uniform.
    spread = {"max_position_embeddings": LONGEST, "initializer_range": 0.2}
    with torch.random.fork_rng():
        torch.manual_seed(_SEED)
        model = kind(kind.config_class(**{**sizes, **spread, **more})).eval()
    model.save_pretrained(str(folder))
    save_bert(folder, True)
    return model


def tokenizer_of(folder: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(str(folder))


def stock_inputs(folder: Path, text: str | tuple[str, str]) -> dict[str, Tensor]:
    """A text or a pair, tokenized by stock."""
    texts = (text,) if isinstance(text, str) else text
    return dict(tokenizer_of(folder)(*texts, return_tensors="pt"))


def numbers(found: Any) -> list[float]:
    """All numbers in a result, in order."""
    if isinstance(found, Tensor):
        return found.flatten().tolist()
    if isinstance(found, dict):
        return numbers(list(found.values()))
    if isinstance(found, list | tuple):
        return [number for part in found for number in numbers(part)]
    return [] if isinstance(found, str) else [found]
