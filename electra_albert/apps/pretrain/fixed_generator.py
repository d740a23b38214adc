"""The generator in a folder (--rtd.generator FOLDER): a pretrained masked language model that is not trained.

Checkpoints do not contain it: they record the hash of its weights. Paper: Fast-ELECTRA (Dong et al. 2023).
"""

from dataclasses import replace
from pathlib import Path

from electra_albert.config import PretrainConfig
from electra_albert.contracts import CheckpointError, UsageError
from electra_albert.corpus.tokenizer import Tokenizer, fingerprint, load_tokenizer
from electra_albert.hub.load import build, locate, read_stored, resize_vocabulary
from electra_albert.model.electra import Generator
from electra_albert.objectives import spec_of


def load_fixed_generator(config: PretrainConfig, tokenizer: Tokenizer) -> list[Generator]:
    """Load the model in config.rtd.generator without gradients; [] if it is no folder. UsageError, CheckpointError."""
    if not (spec_of(config).has_discriminator and config.rtd.is_fixed):
        return []
    path = Path(config.rtd.generator)
    try:
        files = locate(path, "generator")
    except UsageError as error:
        raise UsageError(f"--rtd.generator {error}, or own, shared or uniform") from None
    if fingerprint(load_tokenizer(files.tokenizer)) != fingerprint(tokenizer):
        raise CheckpointError(f"--rtd.generator {path} has another tokenizer; set --tokenizer {files.tokenizer}")
    stored, size = read_stored(files), len(tokenizer)
    least = {"vocab_size": size, "max_position_embeddings": config.corpus.max_seq_length, "type_vocab_size": 2}
    for name, wanted in least.items():
        if (found := getattr(stored.config, name)) < wanted:
            raise CheckpointError(f"--rtd.generator {path} has {name} {found}, the run needs {wanted}; name another")
    tensors = resize_vocabulary(stored.tensors, size, [])
    model = build(stored._replace(config=replace(stored.config, vocab_size=size), tensors=tensors), Generator)
    return [model.requires_grad_(False)]
