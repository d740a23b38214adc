"""Fine-tuning models: sequence and token classification, multiple choice, question answering.

Parameter names are those of AlbertForSequenceClassification and the like, which load an export.
Dimensions: B batch, L length, D hidden, C classes.
"""

# mypy: disable-error-code="no-any-return"

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from electra_albert.config.model import ModelConfig
from electra_albert.model.encoder import Backbone, PredictionHead
from electra_albert.model.initialization import initialize

TaskKind = Literal["sequence", "choice", "span", "token"]

DEFAULT_DROPOUT = 0.1  # before the linear layer, as in ALBERT's and ELECTRA's own code
ARCHITECTURES: dict[str, str] = {
    "sequence": "AlbertForSequenceClassification",
    "choice": "AlbertForMultipleChoice",
    "span": "AlbertForQuestionAnswering",
    "token": "AlbertForTokenClassification",
}
MODERNBERT = "modernbert"  # style of heads on modern blocks
_STYLES = ("albert", "electra", MODERNBERT)
_POOLED_KINDS = ("sequence", "choice")  # heads that read one vector per sequence
_HEAD_PARTS = ("pooler.", "prediction_head.", "classifier.", "electra_classifier.", "qa_outputs.")
_BELOW_BLOCKS = ("embeddings.", "encoder.embedding_hidden_mapping_in.")


@dataclass(frozen=True)
class TaskHead:
    """Kind, labels, style (albert or electra matters to sequence and choice) and dropout of a head.

    Raises ValueError if invalid.
    """

    kind: TaskKind
    num_labels: int
    style: Literal["albert", "electra", "modernbert"] = "albert"
    dropout: float = DEFAULT_DROPOUT

    def __post_init__(self) -> None:
        fixed = {"choice": 1, "span": 2}.get(self.kind, self.num_labels)
        is_known = self.kind in ARCHITECTURES and self.style in _STYLES
        if not is_known or self.num_labels != fixed or fixed < 1:
            raise ValueError(
                f"a head of kind {self.kind!r} and style {self.style!r} cannot have "
                f"{self.num_labels} labels"
            )
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout={self.dropout} must be in [0, 1)")

    @property
    def has_pooler(self) -> bool:
        return self.kind in _POOLED_KINDS and self.style == "albert"

    @property
    def architecture(self) -> str:
        """The stock class that computes the same; for electra_classifier one without a head."""
        if self.output_name == "electra_classifier":
            return "AlbertModel"
        stock = ARCHITECTURES[self.kind]
        return stock.replace("Albert", "ModernBert") if self.style == MODERNBERT else stock

    @property
    def output_name(self) -> str:
        """Parameter name of the output layer: the stock one if a stock class computes the same."""
        if self.style == MODERNBERT:
            return "classifier"
        if self.kind == "span":
            return "qa_outputs"
        if self.kind == "token" or self.style == "albert":
            return "classifier"
        return "electra_classifier"


class TaskModel(Backbone):
    """An encoder with a task head.

    Style electra has no pooler, since replaced-token detection does not train one. On modern blocks
    the style is modernbert.
    """

    def __init__(self, config: ModelConfig, head: TaskHead) -> None:
        super().__init__(config, with_pooler=head.has_pooler)
        self.head = head
        self.prediction_head: PredictionHead | None = None
        if head.style == MODERNBERT:
            self.prediction_head = PredictionHead(config, config.hidden_size)
        self.dropout = nn.Dropout(head.dropout)
        self.add_module(head.output_name, nn.Linear(config.hidden_size, head.num_labels))

    @property
    def output(self) -> nn.Linear:
        return getattr(self, self.head.output_name)

    def initialize(self) -> None:
        """Initialize all weights, the head first: its weights depend on the seed only."""
        # Differs from ELECTRA's code, which uses TensorFlow's default (Glorot); BERT's are normal.
        for name in (*self.head_parts, "embeddings", "encoder"):
            initialize(self.get_submodule(name), self.config)

    @property
    def head_parts(self) -> list[str]:
        """Names of the layers of the head, the output layer first."""
        names = (self.head.output_name, "pooler", "prediction_head")
        return [name for name in names if getattr(self, name, None) is not None]

    def features(self, hidden_states: Tensor, attention_mask: Tensor) -> Tensor:
        """Input of the output layer from hidden_states [B, L, D] and attention_mask [B, L].

        [B, D] for sequence and choice, of style modernbert the mean of the tokens; else [B, L, D].
        """
        is_pooled = self.head.kind in _POOLED_KINDS
        if self.prediction_head is not None:
            if is_pooled:
                weights = attention_mask[..., None]
                hidden_states = (hidden_states * weights).sum(1) / weights.sum(1)
            return self.prediction_head(hidden_states)
        if is_pooled:
            hidden_states = hidden_states[:, 0]
        return hidden_states if self.pooler is None else self.pooler(hidden_states).tanh()

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """Logits, float32 or wider.

        sequence [B, C], choice [B, 1], span [B, L, 2], token [B, L, C].
        """
        hidden_states = self.encode(input_ids, attention_mask, token_type_ids)
        features = self.features(hidden_states, attention_mask)  # [B, (L,) D]
        features = features.to(torch.promote_types(features.dtype, torch.float32))
        # bfloat16 would round a regression's values.
        with torch.autocast(features.device.type, enabled=False):
            return self.output(self.dropout(features))  # [B, (L,) C]


def depth_scales(names: Iterable[str], config: ModelConfig, decay: float) -> dict[str, float]:
    """Layer-wise learning-rate decay: factor decay ** depth for each parameter name.

    Depth: head 0, last block 1, ..., first block, projection E to D, embeddings.
    Raises ValueError for an unknown name. Paper: ELECTRA appendix B.
    """
    # Differs from ELECTRA's code, which counts layers, of which a shared block is many, and the
    # head one level too deep.
    parts: list[str | tuple[str, ...]] = [*_BELOW_BLOCKS]
    for group in range(config.num_hidden_groups):
        for block in range(config.inner_group_num):
            parts.append(f"encoder.albert_layer_groups.{group}.albert_layers.{block}.")
    parts.append(_HEAD_PARTS)
    scales = {}
    for name in names:
        matches = [name.startswith(part) for part in reversed(parts)]
        if not any(matches):
            blocks = config.num_hidden_groups * config.inner_group_num
            raise ValueError(f"{name} is not a parameter of a task model with {blocks} blocks")
        scales[name] = decay ** matches.index(True)
    return scales
