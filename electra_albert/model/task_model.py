"""An encoder under the head of a task: sentences, multiple choice, spans of answers, tags of tokens.

Parameter names are stock ones, so that AlbertForSequenceClassification and its siblings load what is exported.
Dimensions: S dropout samples, B rows, L length, D hidden, C classes.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor, nn

from electra_albert.config import ModelConfig
from electra_albert.model.encoder import Backbone
from electra_albert.model.initialization import initialize

TaskKind = Literal["sequence", "choice", "span", "token"]

DEFAULT_DROPOUT = 0.1  # before the linear layer, as in ALBERT's and ELECTRA's own code
ARCHITECTURES: dict[str, str] = {
    "sequence": "AlbertForSequenceClassification",
    "choice": "AlbertForMultipleChoice",
    "span": "AlbertForQuestionAnswering",
    "token": "AlbertForTokenClassification",
}
_ROW_KINDS = ("sequence", "choice")  # read one vector of a row
_HEAD_PARTS = ("pooler.", "classifier.", "electra_classifier.", "qa_outputs.")
_BELOW_BLOCKS = ("encoder.embedding_hidden_mapping_in.", "embeddings.")


@dataclass(frozen=True)
class TaskHead:
    """A task's head. The style matters for sentence and choice heads; spans and tags have one form."""

    kind: TaskKind
    num_labels: int
    style: Literal["albert", "electra"] = "albert"
    dropout: float = DEFAULT_DROPOUT

    def __post_init__(self) -> None:
        only = {"choice": 1, "span": 2}.get(self.kind, self.num_labels)
        if self.kind not in ARCHITECTURES or self.num_labels != only or self.num_labels < 1:
            raise ValueError(f"a head of kind {self.kind!r} with {self.num_labels} labels cannot be")
        if self.style not in ("albert", "electra"):
            raise ValueError(f"style={self.style!r} is neither albert nor electra")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout={self.dropout} must lie in [0, 1)")

    @property
    def has_pooler(self) -> bool:
        return self.kind in _ROW_KINDS and self.style == "albert"

    @property
    def architecture(self) -> str:
        """The stock class that computes the same from our export; of a pooler-less row head, the encoder alone."""
        return ARCHITECTURES[self.kind] if self.output_name != "electra_classifier" else "AlbertModel"

    @property
    def output_name(self) -> str:
        """Name of the linear layer that gives the outputs: a stock one where a stock class computes the same."""
        if self.kind == "span":
            return "qa_outputs"
        return "classifier" if self.kind == "token" or self.style == "albert" else "electra_classifier"


class TaskModel(Backbone):
    """An encoder with a task's head. Style electra has no pooler, as replaced-token detection trains none."""

    def __init__(self, config: ModelConfig, head: TaskHead) -> None:
        super().__init__(config, with_pooler=head.has_pooler)
        self.head = head
        self.dropout = nn.Dropout(head.dropout)
        self.add_module(head.output_name, nn.Linear(config.hidden_size, head.num_labels))

    @property
    def output(self) -> nn.Linear:
        return cast(nn.Linear, self.get_submodule(self.head.output_name))

    def initialize(self) -> None:
        """Draw every weight from torch's stream, the head first, so that it depends on the seed alone."""
        self.initialize_head()
        initialize(self.embeddings, self.config)
        initialize(self.encoder, self.config)

    def initialize_head(self, *, with_pooler: bool = True) -> None:
        """Draw the weights of the linear layer and, where there is one and it is asked for, of the pooler."""
        # Differs from ELECTRA's code: normal weights as in BERT and ALBERT, TensorFlow's default was Glorot's there.
        initialize(self.output, self.config)
        if self.pooler is not None and with_pooler:
            initialize(self.pooler, self.config)

    def features(self, hidden_states: Tensor) -> Tensor:
        """The linear layer's input from hidden states [B, L, D]: one vector a row [B, D], or those of all tokens."""
        if self.head.kind not in _ROW_KINDS:
            return hidden_states
        first = hidden_states[:, 0]
        return first if self.pooler is None else self.pooler(first).tanh()

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor, samples: int = 1) -> Tensor:
        """Outputs of a batch of rows under `samples` dropout masks on one pass of the encoder; arguments as for encode.

        Returns at least float32: sequence [S, B, C], choice [S, B, 1], span [S, B, L, 2], token [S, B, L, C].
        """
        features = self.features(self.encode(input_ids, attention_mask, token_type_ids))  # [B, (L,) D]
        outputs = self.output(self.dropout(features.expand(samples, *features.shape)))  # [S, B, (L,) C]
        return outputs.to(torch.promote_types(outputs.dtype, torch.float32))


def depth_scales(names: Iterable[str], config: ModelConfig, decay: float) -> dict[str, float]:
    """The factor of each parameter's learning rate: decay to the power of its depth. ValueError for an unknown name.

    Depth counts sets of parameters: the head 0, the blocks from the last, 1, to the first, the mapping, the embeddings.
    """
    # Differs from ELECTRA's code: it counts layers, and one head deeper than meant; a shared block has no one layer.
    groups, inner = range(config.num_hidden_groups), range(config.inner_group_num)
    blocks = [f"encoder.albert_layer_groups.{group}.albert_layers.{block}." for group in groups for block in inner]
    parts: list[str | tuple[str, ...]] = [_HEAD_PARTS, *reversed(blocks), *_BELOW_BLOCKS]
    depths = {name: [depth for depth, start in enumerate(parts) if name.startswith(start)] for name in names}
    if unknown := [name for name, found in depths.items() if not found]:
        raise ValueError(f"{unknown[0]} is no parameter of a task model of {len(blocks)} blocks")
    return {name: decay ** found[0] for name, found in depths.items()}
