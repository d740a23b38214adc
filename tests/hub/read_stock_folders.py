"""Load folders with the installed version of transformers and write its results as JSON.

Arguments: a JSON file with the folders and inputs, and the file to write.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers


def read(folder: str, inputs: list[list[list[int]]], texts: list[list[str]]) -> dict[str, Any]:
    """Class in config.json, its report on keys, its outputs, and the tokenizer's encodings."""
    name = json.loads((Path(folder) / "config.json").read_text())["architectures"][0]
    stock_class = getattr(transformers, name)
    model, report = stock_class.from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager"
    )
    tensors = [
        torch.tensor(ids)[None] if name.endswith("MultipleChoice") else torch.tensor(ids)
        for ids in inputs
    ]
    if name.startswith("ModernBert"):
        del tensors[2]  # it has no segments
    with torch.no_grad():
        actual = model.eval()(
            **dict(zip(("input_ids", "attention_mask", "token_type_ids"), tensors, strict=False))
        )
    return {
        "class": name,
        "dtype": str(model.dtype),
        "report": {kind: sorted(map(str, keys)) for kind, keys in report.items() if keys},
        "outputs": {
            key: value.tolist() for key, value in actual.items() if isinstance(value, torch.Tensor)
        },
        "longest": transformers.AutoTokenizer.from_pretrained(folder).model_max_length,
        **encode(folder, texts),
    }


def encode(folder: str, texts: list[list[str]]) -> dict[str, Any]:
    """input_ids and token_type_ids of texts and pairs."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    actual = [tokenizer(*words) for words in texts]
    return {
        key: [encoding.get(key) for encoding in actual] for key in ("input_ids", "token_type_ids")
    }


def main() -> None:
    plan = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    actual = {folder: read(folder, plan["inputs"], plan["texts"]) for folder in plan["folders"]}
    actual |= {folder: encode(folder, plan["texts"]) for folder in plan["tokenizers"]}
    result = {"version": transformers.__version__, "found": actual}
    Path(sys.argv[2]).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
