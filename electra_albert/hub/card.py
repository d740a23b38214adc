"""Model cards of exported, pretrained and fine-tuned models, with front matter for the hub."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from huggingface_hub import ModelCard, ModelCardData

from electra_albert.config.model import ModelConfig
from electra_albert.contracts import LOG
from electra_albert.files import write_text
from electra_albert.hub import modernbert
from electra_albert.hub.onnx import BROWSER_FORMAT, ONNX_FILE, QUANTIZED_FILE, Model
from electra_albert.model.electra import Discriminator
from electra_albert.model.task_model import ARCHITECTURES, MODERNBERT

CARD = "README.md"
_TEMPLATE = Path(__file__).with_suffix(".jinja")
_MARK = "<!-- card by ELECTRA-ALBERT, written again with the model unless it is changed: {} -->\n"
_PURPOSES = {  # by stock class: the hub's task, and the model's purpose
    "AlbertForMaskedLM": ("fill-mask", "fills in masked tokens"),
    "AlbertForPreTraining": (
        "fill-mask",
        "fills in masked tokens and predicts whether one segment follows the other",
    ),
    "AlbertForSequenceClassification": ("text-classification", "labels a text or a pair of texts"),
    "AlbertForMultipleChoice": ("multiple-choice", "chooses among several texts"),
    "AlbertForTokenClassification": ("token-classification", "labels each token"),
    "AlbertForQuestionAnswering": ("question-answering", "finds an answer in a text"),
    "AlbertModel": ("feature-extraction", "computes a vector for each token"),
}
HUB_TASKS = {kind: _PURPOSES[architecture][0] for kind, architecture in ARCHITECTURES.items()}
_DETECTION = "discriminator_predictions"
_ENERGIES = (
    "`discriminator_predictions`, with the layers of stock ELECTRA, which returns token energies"
)
_EXTRA_HEADS = {  # by our names: heads that AlbertModel does not have
    _DETECTION: (
        "`discriminator_predictions`, the head of stock ELECTRA that detects replaced tokens"
    ),
    "sentence_order": (
        "`sop_classifier`, the head of `AlbertForPreTraining` that predicts the order of two "
        "segments"
    ),
    "electra_classifier": (
        "`electra_classifier`, the head it was fine-tuned with, on [CLS] without a pooler"
    ),
}
_NOTES = {
    "pt": (
        "`weights.pt` maps stock names to tensors. Stock classes do not find it; "
        "`electra_albert` loads the folder."
    ),
    "native": (
        "Stock `transformers` has no ALBERT with its blocks or attention; only `electra_albert` "
        "loads the folder. Modern blocks are exported as ModernBERT."
    ),
    MODERNBERT: (
        "Stock ModernBERT shares no weights: shared layers are repeated in the file, and the "
        "embeddings are multiplied out."
    ),
    "onnx": "`model.onnx` is the model with its heads in float32, for any batch size and length.",
    BROWSER_FORMAT: (
        f"`onnx/{ONNX_FILE}` is the model in float32, `{QUANTIZED_FILE}` in int8, "
        "both with its heads."
    ),
}
_POOLER_NOTES = {  # by stock class, and whether there is a pooler
    ("AlbertForMaskedLM", True): (
        "The weights also contain a pooler, which `AutoModel` loads and `AlbertForMaskedLM` "
        "ignores."
    ),
    ("AlbertModel", False): (
        "It has no pooler, because none was trained: load it with `add_pooling_layer=False`."
    ),
}
_ONNX_CODE = """import onnxruntime
from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("THIS_FOLDER")
session = onnxruntime.InferenceSession("THIS_FOLDER/model.onnx", providers=["CPUExecutionProvider"])
encoded = tokenizer(["A text."], padding=True, return_token_type_ids=True, return_tensors="np")
names = ("input_ids", "attention_mask", "token_type_ids")
values = session.run(None, {name: encoded[name].astype("int64") for name in names})
outputs = dict(zip([output.name for output in session.get_outputs()], values))"""
OWN_CODE = """from electra_albert.inference.model import load_model

model = load_model("THIS_FOLDER")"""


class Facts(NamedTuple):
    """Facts for a model card that the weights do not contain."""

    fields: Mapping[str, Any] = {}  # of ModelCardData
    text: str = ""  # Markdown


def write_card(folder: Path, facts: Facts, code: str, command: str = "") -> None:
    """Write README.md into an existing folder.

    `code` loads the model, `command` is the one that created it. A card by someone else, or edited
    since it was written, is kept and a warning is logged.
    """
    file = folder / CARD
    if file.exists():
        text = file.read_bytes().decode("utf-8", errors="replace")
        if text != _marked(text[: text.rfind("<!--")]):
            LOG.warning(
                f"{file} was written or edited by someone else and is kept; "
                "remove it to get a new card"
            )
            return
    card = ModelCard.from_template(
        ModelCardData(**facts.fields),
        template_str=_TEMPLATE.read_text(encoding="utf-8"),
        title=folder.resolve().name,
        text=facts.text,
        code=code,
        command=command,
    )
    write_text(file, _marked(f"{card}\n"))


def _marked(body: str) -> str:
    """The card with its hash in the last line."""
    return body + _MARK.format(hashlib.sha256(body.encode()).hexdigest()[:16])


def describe(
    model: Model, architecture: str, file_format: str, dtype: torch.dtype, facts: Facts
) -> tuple[Facts, str]:
    """Facts and loading code for the card of an exported model.

    file_format as in save_model, or native.
    """
    if file_format == MODERNBERT:
        architecture = modernbert.architecture(model)
    tag, purpose = _PURPOSES[architecture.replace("ModernBert", "Albert")]
    if file_format == MODERNBERT and isinstance(model, Discriminator):
        purpose = "gives each token a logit, above 0 if it was replaced"
    parts = {name for name, _ in model.named_modules()}
    has_pooler = not parts.isdisjoint({"pooler", "sentence_order.pooler"})
    library = None
    text = f"{family(model.config)} that {purpose}: {describe_shape(model.config)}"
    notes = [_NOTES.get(file_format, "")]
    if file_format in ("onnx", BROWSER_FORMAT):
        code = _ONNX_CODE
    else:
        code = OWN_CODE
        text += f", stored in {str(dtype).removeprefix('torch.')}"
        if file_format != MODERNBERT:
            notes += _extra_heads(model, architecture, parts)
    if file_format == BROWSER_FORMAT:
        library = BROWSER_FORMAT
        code = code.replace(ONNX_FILE, QUANTIZED_FILE)
    if file_format in ("safetensors", MODERNBERT):
        library = "transformers"
        code = stock_code(architecture, with_pooler=has_pooler)
        notes.append(_POOLER_NOTES.get((architecture, has_pooler), ""))
    fields = {"library_name": library, "pipeline_tag": tag, "tags": ["albert", "electra"]}
    paragraphs = filter(None, [f"{text}.", *notes, facts.text])
    return Facts({**fields, **facts.fields}, "\n\n".join(paragraphs)), code


def _extra_heads(model: Model, architecture: str, parts: set[str]) -> list[str]:
    """A note for each head that the stock class does not have."""
    heads = dict(_EXTRA_HEADS)
    if getattr(model, "has_energies", False):
        heads[_DETECTION] = _ENERGIES
    return [
        f"The weights also contain {head}. Stock ALBERT classes report it as unexpected; "
        "`electra_albert` uses it."
        for name, head in heads.items()
        if name in parts and (architecture == "AlbertModel" or name == _DETECTION)
    ]


def family(shape: ModelConfig) -> str:
    return "An encoder with modern blocks" if shape.block == "modern" else "An ALBERT encoder"


def describe_shape(shape: ModelConfig) -> str:
    """The sizes of an encoder as a phrase for a model card."""
    layers = f"{shape.num_hidden_layers} layers" if shape.num_hidden_layers > 1 else "one layer"
    if shape.num_hidden_groups < shape.num_hidden_layers:
        layers += f" in {shape.num_hidden_groups} group(s) of shared weights"
    return (
        f"hidden size {shape.hidden_size}, {layers}, embedding size {shape.embedding_size}, "
        f"vocabulary size {shape.vocab_size}, at most {shape.max_position_embeddings} tokens"
    )


def stock_code(loader: str, path: str = '"THIS_FOLDER"', *, with_pooler: bool = True) -> str:
    """Python code that loads model and tokenizer.

    `loader` is a transformers class, `path` a Python expression.
    """
    options = ""
    if loader in ("AlbertModel", "AutoModel") and not with_pooler:
        options = ", add_pooling_layer=False"
    return f"""from transformers import {loader}, AutoTokenizer

model = {loader}.from_pretrained({path}{options})
tokenizer = AutoTokenizer.from_pretrained({path})"""
