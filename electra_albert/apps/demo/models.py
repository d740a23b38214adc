"""What LM_DEMO.py asks: the model that is named or taken by default, and the sentences it is shown on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from electra_albert.apps.default_model import default_model
from electra_albert.apps.demo.sentences import OF_ANYTHING, OF_DOCUMENTATION
from electra_albert.apps.run_folder import CONFIG

if TYPE_CHECKING:
    from jsonargparse import Namespace

    from electra_albert.hub.load import ModelFiles
    from electra_albert.inference.rewrite import Rewriter

_WAY_OUT = "name the tokenizer it was trained with by --tokenizer, or put that beside its weights"


def default_path() -> Path:
    """The newest run, or, which is said, the model that comes with the checkout."""
    model = default_model("--gen")
    if model.passed_over:
        print(f"notice: {model.passed_over}", file=sys.stderr)
    if model.is_shipped:
        print(model.told(), file=sys.stderr)
    return model.path


def built_in_sentences(path: Path) -> tuple[str, ...]:
    """Sentences of the kind that the model has read: of a run here what it reads by default."""
    return OF_DOCUMENTATION if (path / CONFIG).is_file() else OF_ANYTHING


def load_rewriter(options: Namespace, path: Path) -> Rewriter:
    """The generator that `path` means, its tokenizer, and the discriminator named or stored with it; all checked."""
    from electra_albert.corpus.tokenizer import load_tokenizer
    from electra_albert.hub.load import discriminator_of, generator_of, locate, read_each
    from electra_albert.inference.rewrite import Rewriter
    from electra_albert.inference.token_table import without_spare_rows

    config, folder = (Path(value) if value else None for value in (options.config, options.tokenizer))
    files = locate(path, "generator", config, folder)
    others = _beside(files, options.disc)
    stored, *judging = read_each([files, *others])
    tokenizer = load_tokenizer(files.tokenizer)
    # Of a tokenizer that lies elsewhere only its size tells whether it is the model's.
    rows = stored.config.vocab_size if folder is None else len(tokenizer)
    known = (len(tokenizer), files.tokenizer, _WAY_OUT, rows)
    generator = generator_of(without_spare_rows(stored, *known), str(files.weights))
    discriminator = None
    for each, held in zip(others, judging, strict=True):
        discriminator = discriminator_of(without_spare_rows(held, *known), str(each.weights))
    if spare := rows - len(tokenizer):
        told = f"{spare} rows of the token table belong to no piece of the tokenizer and are never guessed"
        print(f"notice: {told}", file=sys.stderr)
    return Rewriter(generator, discriminator, tokenizer, options.mask_rate, options.temperature, options.seed)


def _beside(files: ModelFiles, named: str | None) -> list[ModelFiles]:
    """The discriminator that is named, or stored with the generator, or in a folder beside its own; or none."""
    from electra_albert.hub.load import locate, locate_encoder

    folder = files.weights.absolute().parent
    beside = folder.parent / "discriminator"
    if named:
        return [locate(Path(named), "discriminator")]
    if files.part:
        encoder = locate_encoder(files.weights)
        return [encoder] if encoder.part != files.part else []
    return [locate(beside, "discriminator")] if folder.name == "generator" and beside.is_dir() else []
