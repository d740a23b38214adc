"""Google's TensorFlow 1 ALBERT checkpoints, as released for v1 and v2, turned into stock Hugging Face folders.

A released archive, unpacked, is a folder with albert_config.json, 30k-clean.model and model.ckpt-best.*. TensorFlow
reads the last of them and is needed for nothing else.
"""

from __future__ import annotations

import glob
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from electra_albert.apps.export_models import export_generator
from electra_albert.contracts import CheckpointError, UsageError
from electra_albert.corpus.tokenizer import load_tokenizer
from electra_albert.corpus.tokenizer_options import TextOptions

if TYPE_CHECKING:
    import numpy as np

    from electra_albert.config import ModelConfig
    from electra_albert.model.electra import Generator

CONFIG_FILE = "albert_config.json"
_RELEASED_NAME = "model.ckpt-best"
_INDEX = ".index"
_PARTS = (_INDEX, ".meta", ".data-00000-of-00001")  # any of which a user may name
_TOKENIZERS = ("*.model", "vocab*.txt")  # SentencePiece of the English models, WordPiece of the Chinese ones
_ARCHIVES = (".tar.gz", ".tgz", ".tar")


class TensorFlowFiles(NamedTuple):
    """Where one checkpoint lies."""

    prefix: Path  # of the names of its files
    config: Path
    tokenizer: Path


def convert_tensorflow(
    source: Path, output_dir: Path, say: Callable[[str], None], tokenizer: Path | None = None
) -> None:
    """Write a checkpoint of Google's as a stock folder, with its MLM head and, where it has one, its SOP head.

    `source` is its folder, or the prefix of its files where a folder holds several; a tokenizer that does not lie
    beside them is named. Raises UsageError for what is not there, TensorFlow included, CheckpointError for what cannot
    be read.
    """
    files = locate_tensorflow(source, tokenizer)
    if files.prefix.parent.resolve() == output_dir.resolve():
        raise UsageError(f"{output_dir} is where the model comes from; choose another --output_dir")
    from electra_albert.model.tensorflow_names import tensorflow_config
    from electra_albert.model.weight_files import read_json

    config = tensorflow_config(read_json(files.config), str(files.config))
    vocabulary = load_vocabulary(files.tokenizer, config)
    generator = build_generator(config, read_variables(files.prefix, config), files.prefix)
    if generator.sentence_order is None:
        say(f"{files.prefix} holds no sentence-order head with its pooler; the model is written without that head")
    export_generator(generator, vocabulary, output_dir)
    say(f"wrote {files.prefix} with the tokenizer {files.tokenizer} to {output_dir}")


def locate_tensorflow(source: Path, tokenizer: Path | None = None) -> TensorFlowFiles:
    """The files of the checkpoint a user means. Raises UsageError, which says what is missing."""
    try:
        is_archive = source.is_file() and source.name.endswith(_ARCHIVES)
    except OSError as error:
        raise UsageError(f"{str(source)[:100]}: {error.strerror}; name the folder of a checkpoint") from None
    try:
        is_missing = tokenizer is not None and not tokenizer.exists()
    except OSError as error:
        raise UsageError(f"{str(tokenizer)[:100]}: {error.strerror}; tell the tokenizer by --tokenizer FILE") from None
    if is_missing:
        raise UsageError(f"{tokenizer} does not exist; tell the tokenizer by --tokenizer FILE")
    if is_archive:
        raise UsageError(f"{source} is an archive; unpack it by tar -xf {source} and name the folder that it gives")
    prefix = _find_prefix(source)
    if not list(prefix.parent.glob(f"{glob.escape(prefix.name)}.data-*-of-*")):
        raise UsageError(f"{prefix}.data-00000-of-00001 does not exist; fetch all files of the checkpoint")
    config = prefix.parent / CONFIG_FILE
    if not config.is_file():
        raise UsageError(f"{config} does not exist; put the configuration of the released archive there")
    return TensorFlowFiles(prefix, config, tokenizer or _find_tokenizer(prefix.parent))


def _find_prefix(source: Path) -> Path:
    if not source.is_dir():
        ending = next((part for part in _PARTS if source.name.endswith(part)), "")
        prefix = Path(str(source).removesuffix(ending))
        if not Path(f"{prefix}{_INDEX}").is_file():
            raise UsageError(f"{prefix}{_INDEX} does not exist; name the folder of a TensorFlow checkpoint")
        return prefix
    names = sorted(file.name.removesuffix(_INDEX) for file in source.glob(f"*{_INDEX}"))
    if not names:
        raise UsageError(f"{source} holds no {_RELEASED_NAME}{_INDEX}; name the folder of a TensorFlow checkpoint")
    if len(names) > 1 and _RELEASED_NAME not in names:
        raise UsageError(f"{source} holds {len(names)} checkpoints; name one of them, as {source / names[-1]}")
    return source / (_RELEASED_NAME if _RELEASED_NAME in names else names[0])


def _find_tokenizer(folder: Path) -> Path:
    for pattern in _TOKENIZERS:
        found = sorted(folder.glob(pattern))
        if len(found) == 1:
            return found[0]
        if found:
            raise UsageError(f"{folder} holds {found[0].name} and {found[1].name}; tell which by --tokenizer FILE")
    raise UsageError(f"{folder} holds no 30k-clean.model; tell the model's tokenizer by --tokenizer FILE")


def load_vocabulary(file: Path, config: ModelConfig) -> Any:
    """The tokenizer; a SentencePiece model with Google's rule that a comma is kept apart from the digit before it.

    Raises CheckpointError where it is not of the model's size.
    """
    is_sentencepiece = file.suffix == ".model"
    vocabulary = load_tokenizer(file, TextOptions(split_digit_comma=True if is_sentencepiece else None))
    if len(vocabulary) != config.vocab_size:
        raise CheckpointError(
            f"the tokenizer {file} has {len(vocabulary)} pieces, the model {config.vocab_size}; "
            "tell the one it was trained with by --tokenizer FILE"
        )
    return vocabulary


def read_variables(prefix: Path, config: ModelConfig) -> dict[str, np.ndarray]:
    """The variables of the model in a checkpoint, those of the optimiser left aside, which are twice as large.

    No values are read before names, shapes and the size of the files are seen to match. Raises as convert_tensorflow.
    """
    try:
        import tensorflow  # type: ignore[import-untyped]
    except ImportError as error:
        reason = " ".join(str(error).split())[:100]
        raise UsageError(f"reading {prefix} needs TensorFlow ({reason}): pip install tensorflow-cpu") from None
    from electra_albert.model.tensorflow_names import find_variables

    with _told_as_damage(prefix, tensorflow.errors.OpError):
        reader = tensorflow.train.load_checkpoint(str(prefix))
        shapes, types = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    wanted = find_variables(shapes, config, str(prefix))
    odd = next((name for name in wanted if types[name] != tensorflow.float32), None)
    if odd is not None:
        raise CheckpointError(f"{odd} in {prefix} is of type {types[odd].name}, not float32")
    _require_room(prefix, sum(math.prod(shapes[name]) for name in wanted))
    with _told_as_damage(prefix, tensorflow.errors.OpError):
        return {name: reader.get_tensor(name) for name in wanted}


@contextmanager
def _told_as_damage(prefix: Path, of_tensorflow: type[Exception]) -> Iterator[None]:
    """Turn what TensorFlow raises on damaged files, an error of its own or one of Python's, into a CheckpointError."""
    try:
        yield
    except (of_tensorflow, RuntimeError, LookupError, ValueError) as error:
        reason = " ".join(str(error).split())[:150]
        raise CheckpointError(f"{prefix} cannot be read ({reason}); it is damaged, fetch it again") from None


def _require_room(prefix: Path, numbers: int) -> None:
    """CheckpointError where the files are too small to hold so many float32: an index must not cost memory."""
    stored = sum(file.stat().st_size for file in prefix.parent.glob(f"{glob.escape(prefix.name)}.data-*-of-*"))
    if stored < 4 * numbers:
        raise CheckpointError(
            f"{prefix}.data-* hold {stored} bytes, its variables take {4 * numbers}; fetch all files of the checkpoint"
        )


def build_generator(config: ModelConfig, variables: dict[str, np.ndarray], prefix: Path) -> Generator:
    """A masked language model in eval mode, with a sentence-order head where the variables hold one and its pooler.

    Where they hold the pooler alone, it is kept. Raises CheckpointError as stock_tensors does, naming `prefix`.
    """
    from electra_albert.model.loading import Stored, generator_of
    from electra_albert.model.tensorflow_names import stock_tensors

    tensors = stock_tensors(variables, config, str(prefix))
    return generator_of(
        Stored(config, {name.removeprefix("albert."): t for name, t in tensors.items()}, []), str(prefix)
    )
