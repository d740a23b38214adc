"""The model to fine-tune: its files, architecture, tokenizer and published settings."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError, safe_open

from electra_albert.apps.default_model import default_model
from electra_albert.config.finetuning import FinetuneConfig
from electra_albert.config.model import ModelConfig
from electra_albert.config.presets import PRESETS
from electra_albert.config.pretraining import CorpusConfig
from electra_albert.contracts import LOG, UsageError
from electra_albert.files import sha256
from electra_albert.hub import find, load, weights
from electra_albert.tasks import recipes
from electra_albert.tokenization.tokenizer import Tokenizer, load_tokenizer
from electra_albert.training.distributed import World, main_first

_SCRATCH_PRESET = "tiny"  # the shape without a pretrained model
_SMALL = 256  # hidden size up to which only ELECTRA published settings, not ALBERT


class BaseModel(NamedTuple):
    """The model to fine-tune or evaluate; its weights are not loaded yet."""

    name: str
    files: find.ModelFiles | None  # None: random weights
    config: ModelConfig
    tokenizer: Tokenizer
    family: recipes.Family  # of the published settings to use
    fingerprint: str  # of the weights


def find_base_model(config: FinetuneConfig, world: World) -> BaseModel:
    """The model of --model, else the default one, else the smallest preset with random weights."""
    model = config.tuning.model
    try:
        path = default_model("--model") if model is None else Path(model)
    except UsageError as error:
        LOG.info(f"notice: no pretrained model, training from random weights: {error}")
        return _random_model(config.data.prepared_dir, world)
    files = load.locate(path)
    shape = load.read_config(files)
    tokenizer = load_tokenizer(files.tokenizer)
    if len(tokenizer) > shape.vocab_size:
        raise UsageError(
            f"the tokenizer in {files.tokenizer} has {len(tokenizer)} tokens, the model only "
            f"{shape.vocab_size}; use the tokenizer it was trained with"
        )
    is_electra = load.read_details(files).get("family") == "electra"
    is_electra = is_electra or shape.hidden_size <= _SMALL or _has_discriminator(files)
    family: recipes.Family = "electra" if is_electra else "albert"
    hashes = map(sha256, weights.all_files(files.weights))
    fingerprint = " ".join(filter(None, [*hashes, files.part]))
    return BaseModel(model_name(path), files, shape, tokenizer, family, fingerprint)


def _random_model(prepared_dir: str, world: World) -> BaseModel:
    from electra_albert.corpus.prepare import prepare

    preset = PRESETS[_SCRATCH_PRESET]
    corpus = CorpusConfig(vocab_size=preset.corpus.vocab_size, prepared_dir=prepared_dir)
    with main_first(world):
        tokenizer = prepare(corpus, preset.training.seed).tokenizer
    shape = replace(preset.model, vocab_size=len(tokenizer))
    return BaseModel(_SCRATCH_PRESET, None, shape, tokenizer, "electra", "")


def _has_discriminator(files: find.ModelFiles) -> bool:
    """Whether a model has ELECTRA's head, by the names in its files; a pickle is read."""
    names = set()
    for file, listed in weights.all_files(files.weights).items():
        if listed is not None:
            names |= listed
        elif file.suffix == ".safetensors":
            # A damaged file is refused when the model is built.
            with suppress(OSError, SafetensorError), safe_open(str(file), framework="pt") as header:
                names.update(header.keys())
        else:
            names |= load.read_stored(files).parts
    return any("discriminator_predictions" in name for name in names)


def model_name(path: Path) -> str:
    """The name of a model folder in that of an output folder."""
    path = path.resolve()
    name = path.parent.name if path.name in find.ENCODER_FOLDERS else path.name
    return f"{path.parents[1].name}-{name}" if path.parent.name == "checkpoints" else name


def apply_recipe(config: FinetuneConfig, task_name: str, base: BaseModel) -> FinetuneConfig:
    """Fill options that the user did not set with the published settings for model and task."""
    recipe = config.tuning.recipe
    family = base.family if recipe == "auto" else recipe
    return config.with_defaults(recipes.recipe(family, task_name, base.config))
