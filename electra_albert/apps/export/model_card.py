"""The card of an exported model: what it is, what it holds beside what stock classes load, how to load it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from electra_albert.apps.export.checks import pooler_of

if TYPE_CHECKING:
    from electra_albert.hub.outputs import Model
    from electra_albert.model.task_model import TaskModel

_TASKS = {  # by the last part of a stock class's name: the hub's name of the task, and what the model does
    "ForMaskedLM": ("fill-mask", "fills in masked tokens"),
    "ForPreTraining": ("fill-mask", "fills in masked tokens and tells whether two segments changed places"),
    "ForSequenceClassification": ("text-classification", "labels a text or a pair of texts"),
    "ForMultipleChoice": ("multiple-choice", "chooses among several texts"),
    "ForTokenClassification": ("token-classification", "labels each token"),
    "ForQuestionAnswering": ("question-answering", "finds an answer in a text"),
    "Model": ("feature-extraction", "gives a vector for each token"),
}
# Parts that stock classes have no place for, or that they expect and this model does not have.
_DETECTION = (
    "The weights also hold a head that tells which tokens were replaced, under the names it has in stock ELECTRA "
    "(`discriminator_predictions`). Stock ALBERT classes report it as unexpected; `electra_albert` computes it."
)
_ORDER = (
    "The weights also hold a head that tells whether two segments changed places, under the names it has in stock "
    "`AlbertForPreTraining` (`sop_classifier`); it reads the pooler. `AlbertModel` reports it as unexpected; "
    "`electra_albert` computes it."
)
_ELECTRA_HEAD = (
    "The weights also hold the head it was fine-tuned with (`electra_classifier`), which no stock class has: it reads "
    "[CLS] without a pooler. Stock classes report it as unexpected; `electra_albert` computes it."
)
_POOLER = (
    "The weights also hold a pooler, `albert.pooler`, as they came with one: `AutoModel` loads it, "
    "`AlbertForMaskedLM`, which has no place for it, reports it as unexpected."
)
_NO_POOLER = (
    "It has no pooler, since nothing trained one: load it with `add_pooling_layer=False`, or stock classes report "
    "`pooler` as newly initialised."
)
_PLAIN_TENSORS = (
    "`weights.pt` is a flat mapping of stock names to tensors, for `torch.load(..., weights_only=True)`. Stock classes "
    "do not look for a file of that name; `electra_albert` loads the folder."
)
_NATIVE = (
    "Stock `transformers` does not compute its attention, {}: the weights have the names of `electra_albert`, which "
    "alone loads the folder."
)
_GRAPH = (
    "`model.onnx` is the model as one graph, float32, for any number of rows and any length up to the longest. Where "
    "`model.onnx.data` lies beside it, that holds the weights."
)
_DETECTOR = ("token-classification", "tells which tokens were replaced (`logits` above 0)")
_ENDINGS = {  # of the stock class, by the kind of head
    "sequence": "ForSequenceClassification",
    "choice": "ForMultipleChoice",
    "span": "ForQuestionAnswering",
    "token": "ForTokenClassification",
}
_LOADERS = {  # by class, for files that stock classes do not look for
    "Generator": ("model", "load_generator"),
    "Discriminator": ("model", "load_discriminator"),
    "Body": ("model", "load_body"),
    "TaskModel": ("model, details", "load_task_model"),
}
FOR_ITS_MAKER = "Made with ELECTRA-ALBERT. Data, results and licence are for its maker to state here."
THIS_FOLDER = "`THIS_FOLDER` stands for the path of this folder, or for its name on the hub once it is uploaded."
MADE_WITH = (
    "Made with ELECTRA-ALBERT. Where they are not given, licence and language are for its maker to state: `license:` "
    "and `language:` at the top."
)
_MARK = "<!-- card by ELECTRA-ALBERT, written anew with the model unless it is changed: {} -->"


class Facts(NamedTuple):
    """What a card says that the weights do not: fields of its front matter, as in ModelCardData, and Markdown."""

    fields: Mapping[str, Any] = {}
    text: str = ""


def front_matter(**fields: Any) -> str:
    """The fields that are known, as the YAML block that the hub reads."""
    from huggingface_hub import ModelCardData

    return f"---\n{ModelCardData(**fields).to_yaml()}\n---"


def hub_task(kind: str) -> str:
    """The hub's name of a task, by the kind of head."""
    return _TASKS[_ENDINGS[kind]][0]


def model_card(model: Model, architecture: str, file_format: str = "safetensors", facts: Facts | None = None) -> str:
    """Markdown with the front matter the hub reads; of where the model came from it says only what `facts` do.

    `file_format` is safetensors, pt, onnx, or native, safetensors of a model that stock does not compute. The last line
    is a mark, by which `is_our_card` knows it again.
    """
    ending, facts = architecture.removeprefix("Albert"), facts or Facts()
    pipeline_tag, purpose = _purpose(model, ending, file_format)
    shape = model.config
    text = "\n".join(
        [
            front_matter(
                library_name="transformers" if file_format == "safetensors" else None,
                pipeline_tag=pipeline_tag,
                tags=["albert", "electra"],
                **facts.fields,
            ),
            "",
            f"An ALBERT encoder that {purpose}: hidden size {shape.hidden_size}, {shape.num_hidden_layers} passes "
            f"through {shape.num_hidden_groups} group(s) of layers, embedding size {shape.embedding_size}, "
            f"{shape.vocab_size} pieces, {shape.max_position_embeddings} tokens at most, float32.",
            *(f"\n{note}" for note in _notes(model, ending, file_format)),
            *(["", facts.text] if facts.text else []),
            "",
            THIS_FOLDER,
            "",
            "```python",
            *_loading_lines(model, architecture, file_format),
            "```",
            *_demo_lines(model, file_format),
            "",
            MADE_WITH if facts.text else FOR_ITS_MAKER,
            "",
        ]
    )
    return marked(text)


def marked(text: str) -> str:
    """A card with the mark behind it by which `is_our_card` knows it again."""
    return text + _mark(text)


def is_our_card(text: str) -> bool:
    """Whether a card was written here and is as it was written."""
    body, _, last = text.removesuffix("\n").rpartition("\n")
    return f"{last}\n" == _mark(f"{body}\n")


def _mark(text: str) -> str:
    return _MARK.format(hashlib.sha256(text.encode()).hexdigest()[:16]) + "\n"


def _purpose(model: Model, ending: str, file_format: str) -> tuple[str, str]:
    """The hub's name of the task, and what the file does in words: a graph computes all heads, stock classes theirs."""
    parts = {name for name, _ in model.named_children()}
    if file_format == "onnx" and "discriminator_predictions" in parts:
        return _DETECTOR
    if file_format == "onnx" and "electra_classifier" in parts:
        return _TASKS[_ENDINGS[cast("TaskModel", model).head.kind]]
    return _TASKS[ending]


def _notes(model: Model, ending: str, file_format: str) -> list[str]:
    if file_format == "onnx":
        return [_GRAPH]
    if file_format == "native":
        return [_NATIVE.format(f"`{model.config.attention}`")]
    parts = {name for name, _ in model.named_children()}
    if file_format == "pt":
        return [_PLAIN_TENSORS, f"It holds {', '.join(f'`{name}`' for name in sorted(parts - {'dropout'}))}."]
    notes = [_DETECTION] if "discriminator_predictions" in parts else []
    notes += [_ORDER] if ending == "Model" and "sentence_order" in parts else []
    notes += [_ELECTRA_HEAD] if "electra_classifier" in parts else []
    notes += [_POOLER] if ending == "ForMaskedLM" and "pooler" in parts else []
    return notes + ([_NO_POOLER] if ending == "Model" and pooler_of(model) is None else [])


def _loading_lines(model: Model, architecture: str, file_format: str) -> list[str]:
    if file_format == "onnx":
        return [
            "import onnxruntime",
            "from transformers import AutoTokenizer",
            "",
            'tokenizer = AutoTokenizer.from_pretrained("THIS_FOLDER")',
            'session = onnxruntime.InferenceSession("THIS_FOLDER/model.onnx", providers=["CPUExecutionProvider"])',
            'rows = tokenizer(["A text."], padding=True, return_token_type_ids=True, return_tensors="np")',
            'names = ("input_ids", "attention_mask", "token_type_ids")',
            'found = session.run(None, {name: rows[name].astype("int64") for name in names})',
            "outputs = dict(zip([each.name for each in session.get_outputs()], found))",
        ]
    if file_format in ("pt", "native"):
        result, loader = _LOADERS[type(model).__name__]
        return [
            "from pathlib import Path",
            f"from electra_albert.hub.load import {loader}, locate",
            "",
            f'{result} = {loader}(locate(Path("THIS_FOLDER"), "model"))',
        ]
    lacks_pooler = architecture == "AlbertModel" and pooler_of(model) is None
    options = ", add_pooling_layer=False" if lacks_pooler else ""
    return [
        f"from transformers import {architecture}, AutoTokenizer",
        "",
        f'model = {architecture}.from_pretrained("THIS_FOLDER"{options})',
        'tokenizer = AutoTokenizer.from_pretrained("THIS_FOLDER")',
    ]


def _demo_lines(model: Model, file_format: str) -> list[str]:
    if file_format in ("pt", "native") and type(model).__name__ == "Generator":
        return ["", "Or `python LM_DEMO.py --gen THIS_FOLDER` in a checkout of ELECTRA-ALBERT."]
    return []
