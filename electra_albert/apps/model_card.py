"""The card of an exported model: what it is, what it holds beside what stock classes load, how to load it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from electra_albert.model.outputs import Model

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
_ELECTRA_HEAD = (
    "The weights also hold the head it was fine-tuned with (`electra_classifier`), which no stock class has: it reads "
    "[CLS] without a pooler. Stock classes report it as unexpected; `electra_albert` computes it."
)
_NO_POOLER = (
    "It has no pooler, since nothing trained one: load it with `add_pooling_layer=False`, or stock classes report "
    "`pooler` as newly initialised."
)


def model_card(model: Model, architecture: str) -> str:
    """Markdown with the front matter the hub reads. It says nothing of where the model came from or lies."""
    ending = architecture.removeprefix("Albert")
    pipeline_tag, purpose = _TASKS[ending]
    shape = model.config
    options = ", add_pooling_layer=False" if ending == "Model" and not _has_pooler(model) else ""
    return "\n".join(
        [
            "---",
            "library_name: transformers",
            f"pipeline_tag: {pipeline_tag}",
            "tags: [albert, electra]",
            "---",
            "",
            f"An ALBERT encoder that {purpose}: hidden size {shape.hidden_size}, {shape.num_hidden_layers} passes "
            f"through {shape.num_hidden_groups} group(s) of layers, embedding size {shape.embedding_size}, "
            f"{shape.vocab_size} pieces, {shape.max_position_embeddings} tokens at most, float32.",
            *(f"\n{note}" for note in _notes(model, ending)),
            "",
            "```python",
            f"from transformers import {architecture}, AutoTokenizer",
            "",
            f'model = {architecture}.from_pretrained("THIS_FOLDER"{options})',
            'tokenizer = AutoTokenizer.from_pretrained("THIS_FOLDER")',
            "```",
            "",
            "Made with ELECTRA-ALBERT. Data, results and licence are for its maker to state here.",
            "",
        ]
    )


def _notes(model: Model, ending: str) -> list[str]:
    parts = {name for name, _ in model.named_children()}
    notes = [_DETECTION] if "discriminator_predictions" in parts else []
    notes += [_ELECTRA_HEAD] if "electra_classifier" in parts else []
    return notes + ([_NO_POOLER] if ending == "Model" and not _has_pooler(model) else [])


def _has_pooler(model: Model) -> bool:
    return any(getattr(model, name, None) is not None for name in ("pooler", "sentence_order"))
