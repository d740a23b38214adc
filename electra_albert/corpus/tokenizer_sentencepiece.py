"""SentencePiece models, read without the sentencepiece package."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from electra_albert.contracts import CheckpointError
from electra_albert.corpus.tokenizer_files import check_rows, read_bytes


class SentencePieces(NamedTuple):
    """What a SentencePiece model says of its pieces and of its characters."""

    vocab: list[tuple[str, float]]
    unknown_id: int
    charsmap: bytes | None
    control: list[str]  # pieces that no text gives


def read_sentencepiece(file: Path) -> SentencePieces:
    """The pieces of a SentencePiece model of type Unigram; CheckpointError where it is damaged or of another type.

    Read with protobuf alone; the module that describes the format is whichever transformers itself would import, since
    protobuf refuses to hold two.
    """
    from google.protobuf.message import DecodeError
    from transformers.convert_slow_tokenizer import import_protobuf

    proto = import_protobuf().ModelProto()
    try:
        proto.ParseFromString(read_bytes(file))
    except DecodeError:
        raise CheckpointError(f"{file} is no SentencePiece model or a damaged one; fetch it again") from None
    trainer = proto.trainer_spec
    if not (proto.HasField("trainer_spec") and proto.HasField("normalizer_spec")):  # they stand behind the pieces
        raise CheckpointError(f"{file} is cut off behind {len(proto.pieces)} pieces; fetch it again")
    kind = type(trainer).ModelType.Name(trainer.model_type)
    if kind != "UNIGRAM" or trainer.byte_fallback:
        kind += " with byte fallback" if trainer.byte_fallback else ""
        raise CheckpointError(f"{file} is a SentencePiece model of type {kind}, not UNIGRAM; name a Unigram model")
    rows = [[piece.piece, piece.score] for piece in proto.pieces]
    vocab = check_rows(file, rows)
    if not 0 <= trainer.unk_id < len(vocab):
        raise CheckpointError(f"{file}: its unknown piece {trainer.unk_id} is not among its pieces; fetch it again")
    control = [piece.piece for piece in proto.pieces if piece.type == piece.CONTROL]
    return SentencePieces(vocab, trainer.unk_id, proto.normalizer_spec.precompiled_charsmap or None, control)
