"""Run by its path under some version of transformers: what that version makes of folders, as JSON. Knows nothing of us.

Arguments: a JSON file that says what to load, and the file to write what was found into.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers


def read(folder: str, rows: list[list[list[int]]], texts: list[str], pairs: list[list[str]]) -> dict[str, Any]:
    """The class config.json names, what it reports, what it computes, and the ids of the tokenizer."""
    name = json.loads((Path(folder) / "config.json").read_text())["architectures"][0]
    stock_class = getattr(transformers, name)
    model, report = stock_class.from_pretrained(folder, output_loading_info=True, attn_implementation="eager")
    tensors = [torch.tensor(row)[None] if name.endswith("MultipleChoice") else torch.tensor(row) for row in rows]
    inputs = dict(zip(("input_ids", "attention_mask", "token_type_ids"), tensors, strict=True))
    with torch.no_grad():
        found = model.eval()(**inputs)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return {
        "class": name,
        "dtype": str(model.dtype),
        "report": {kind: sorted(map(str, keys)) for kind, keys in report.items() if keys},
        "outputs": {key: value.tolist() for key, value in found.items() if isinstance(value, torch.Tensor)},
        "tokenizer": type(tokenizer).__name__,
        "texts": [dict(tokenizer(text)) for text in texts],
        "pairs": [dict(tokenizer(*pair)) for pair in pairs],
        "longest": tokenizer.model_max_length,
    }


def encode(folder: str, texts: list[str], pairs: list[list[str]]) -> dict[str, Any]:
    """Ids and segments of texts and of pairs, by a tokenizer alone."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    found = [tokenizer(*words) for words in [*([text] for text in texts), *pairs]]
    return {key: [encoding[key] for encoding in found] for key in ("input_ids", "token_type_ids")}


def fill(folder: str, text: str) -> list[list[Any]]:
    """Ids and scores of the five likeliest words, by the pipeline."""
    pipeline = transformers.pipeline("fill-mask", model=folder, tokenizer=folder)
    return [[guess["token"], guess["score"]] for guess in pipeline(text, top_k=5)]


def main() -> None:
    plan = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    shared = (plan["rows"], plan["texts"], plan["pairs"])
    found = {
        "version": transformers.__version__,
        "folders": {folder: read(folder, *shared) for folder in plan["folders"]},
        "tokenizers": {folder: encode(folder, *shared[1:]) for folder in plan["tokenizers"]},
        "filled": {folder: fill(folder, plan["sentence"]) for folder in plan["fill"]},
    }
    Path(sys.argv[2]).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
