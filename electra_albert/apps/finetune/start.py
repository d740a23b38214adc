"""What fine-tuning begins with: a run of ours, a stock ALBERT folder, a fine-tuned model, or nothing but a shape."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from electra_albert.apps.default_model import default_model
from electra_albert.config import CorpusConfig, ModelConfig
from electra_albert.contracts import UsageError
from electra_albert.corpus.tokenizer import load_tokenizer
from electra_albert.files import sha256
from electra_albert.hub.load import is_detector, locate_encoder, read_config, read_details
from electra_albert.hub.weights import all_files
from electra_albert.presets import PRESETS
from electra_albert.training.distributed import World, main_first

if TYPE_CHECKING:
    from electra_albert.corpus.tokenizer import Tokenizer
    from electra_albert.hub.load import ModelFiles

LOG = logging.getLogger(__name__)

_BARE_PRESET = "tiny"
_SMALL = 256  # hidden size up to which ALBERT published no settings, and ELECTRA did


class Start(NamedTuple):
    """A model to fine-tune, not yet loaded."""

    name: str
    files: ModelFiles | None  # None: random weights
    config: ModelConfig
    tokenizer: Tokenizer
    family: Literal["electra", "albert"]  # whose fine-tuning settings fit it
    fingerprint: str  # of the weights


def find_start(model: str | None, prepared_dir: str, world: World) -> Start:
    """The model named, the newest run that learned, or the one that comes with the checkout.

    Without any, the smallest shape with random weights, which is said.

    Raises UsageError and CheckpointError for what is not there or cannot be read.
    """
    if model is None:
        try:
            default = default_model("--model")
        except UsageError as error:
            return _bare(prepared_dir, world, str(error))
        path = default.path
        if default.passed_over:
            LOG.info(f"notice: {default.passed_over}")
        LOG.info(default.told())
    else:
        path = Path(model)
    files = locate_encoder(path)
    config, tokenizer = read_config(files), load_tokenizer(files.tokenizer)
    if len(tokenizer) > config.vocab_size:
        raise UsageError(
            f"the tokenizer in {files.tokenizer} has {len(tokenizer)} pieces, the model only {config.vocab_size}; "
            "give the tokenizer it was trained with"
        )
    was_detector = is_detector(files) or read_details(files).get("family") == "electra"
    has_electras_size = was_detector or config.hidden_size <= _SMALL
    family: Literal["electra", "albert"] = "electra" if has_electras_size else "albert"
    fingerprint = " ".join([*map(sha256, all_files(files.weights)), *([files.part] if files.part else [])])
    return Start(_name(path.resolve()), files, config, tokenizer, family, fingerprint)


def _name(path: Path) -> str:
    """What a model is called: its folder, with that of the run where the folder is a part of one."""
    if path.parent.name == "checkpoints":
        return f"{path.parents[1].name}-{path.name}"
    return path.parent.name if path.name in ("generator", "discriminator", "model") else path.name


def _bare(prepared_dir: str, world: World, why: str) -> Start:
    from electra_albert.apps.prepare.main import prepare

    LOG.info(f"notice: this begins with random weights and learns from the task alone: {why}")
    preset = PRESETS[_BARE_PRESET]
    corpus = CorpusConfig(vocab_size=preset.corpus.vocab_size, prepared_dir=prepared_dir)
    with main_first(world):
        tokenizer = prepare(corpus, preset.training.seed).tokenizer
    shape = replace(preset.model, vocab_size=len(tokenizer))
    return Start(_BARE_PRESET, None, shape, tokenizer, "electra", "")
