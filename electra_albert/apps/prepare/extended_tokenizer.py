"""A given tokenizer with words of the corpus behind its pieces, made once and kept beside the token store."""

from __future__ import annotations

import logging
from pathlib import Path

from electra_albert.apps.prepare.folder import CorpusFolder
from electra_albert.apps.prepare.tokenizer_sample import sample_sentences
from electra_albert.contracts import UsageError

LOG = logging.getLogger(__name__)

TOKENIZER_MAX_LENGTH = 512  # of the copy kept with the store; a run's own copy carries the run's


def extended_tokenizer(corpus: CorpusFolder, size: int) -> Path:
    """The folder of the given tokenizer with words of the corpus behind its pieces, `size` in all or what there is.

    Raises UsageError where it has more pieces than that, or cannot be extended.
    """
    from electra_albert.corpus.tokenizer import save_tokenizer
    from electra_albert.corpus.tokenizer_extension import extend_tokenizer

    folder, extended = corpus.folder / f"tokenizer-{size}", corpus.given
    assert extended is not None
    before = len(extended)
    if size < before:
        raise UsageError(f"--extend_vocab_to {size}: the tokenizer has {before} pieces already; name a larger number")
    if (folder / "tokenizer.json").is_file():
        return folder
    # WordPiece can cut with a new piece what it could not cut before, and so find more words; asked for until there
    # are none, so that a run that goes on with the tokenizer it extended adds nothing to it.
    while len(extended) < size:
        extension = extend_tokenizer(extended, sample_sentences(corpus), size - len(extended))
        extended = extension.tokenizer
        if not extension.pieces:
            break
    LOG.info(
        f"the tokenizer has {len(extended):,} pieces: {before:,} of its own and {len(extended) - before:,} words more"
    )
    save_tokenizer(extended, folder, TOKENIZER_MAX_LENGTH)
    return folder
