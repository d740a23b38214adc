"""Train an ALBERT tokenizer: Unigram pieces, learned so that they repeat bit for bit. Paper: ALBERT section 4.1."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from electra_albert.contracts import DataError
from electra_albert.corpus.tokenizer_albert import SPECIAL_PIECES, UNK_ID, WORD_START, build_albert

if TYPE_CHECKING:
    from transformers import AlbertTokenizer

CHARACTER_COVERAGE = 0.9999  # the rarest characters beyond it become <unk>, as in SentencePiece, and take no pieces
TRAINING_CHARACTERS = 1_000_000  # of distinct words; below the trainer's seed size, whose cut would not repeat
SCORE_DIGITS = 5
_PENALTY_STEP = 1e-4  # the trainer spaces the scores of characters it has to add by this, in no fixed order
_FEED_WORDS = 1000
# Characters for private use that end the second word; so many that no piece which holds one is ever frequent.
_ENDINGS = "".join(chr(0xF0000 + number) for number in range(1024))
_LONGEST_PIECE = 16
_RUN = re.compile(rf"{WORD_START}?(?:[^\W\d_]+|\d+|.)", re.DOTALL)


def train_tokenizer(
    sentences: Iterable[str], vocab_size: int, do_lower_case: bool, keep_accents: bool = False
) -> AlbertTokenizer:
    """Unigram pieces learned from `sentences`; fewer than `vocab_size` where the text has not that many.

    No piece joins a comma to a digit, so that Google's rule for such pieces holds without being applied.
    Repeats bit for bit: the trainer is handed the counted words in a fixed order, what it leaves to chance (the last
    bits of the scores, the order of the characters it adds itself) is rounded off or put in order.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers
    from tokenizers.trainers import UnigramTrainer
    from transformers import AlbertTokenizer

    options = {"do_lower_case": do_lower_case, "keep_accents": keep_accents}
    normalizer = AlbertTokenizer(**options).backend_tokenizer.normalizer
    words: Counter[str] = Counter()
    for sentence in sentences:
        words.update(normalizer.normalize_str(sentence).split())
    kept = _training_runs(words, most_characters=max(1, (vocab_size - len(SPECIAL_PIECES)) // 2))
    if not words:
        raise DataError("the corpus holds no text to train a tokenizer on; give it some sentences")
    if not kept:
        found = f"only words of more than {TRAINING_CHARACTERS // 2:,} characters, or of rare ones"
        raise DataError(f"the corpus holds {found}: no text to train a tokenizer on; give it some sentences")
    endings = _ENDINGS[: len(kept)]
    trainer = UnigramTrainer(
        vocab_size=vocab_size + len(endings),
        special_tokens=list(SPECIAL_PIECES),
        unk_token=SPECIAL_PIECES[UNK_ID],
        max_piece_length=_LONGEST_PIECE,
        show_progress=False,
    )
    bare = Tokenizer(models.Unigram())
    bare.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    bare.train_from_iterator(_repeat_runs(kept, endings), trainer)
    vocab = json.loads(bare.to_str())["model"]["vocab"]
    scores = _repeatable_scores({piece: score for piece, score in vocab if piece not in SPECIAL_PIECES})
    own = {piece: score for piece, score in scores.items() if piece[-1] not in endings}
    ordered = sorted(own.items(), key=lambda item: (-item[1], item[0]))[: vocab_size - len(SPECIAL_PIECES)]
    return build_albert([(piece, 0.0) for piece in SPECIAL_PIECES] + ordered, options)


def _training_runs(words: Counter[str], most_characters: int) -> list[tuple[str, int]]:
    """The most frequent runs made of the covered characters, up to a bound on their characters together.

    Words are cut into runs of letters, runs of digits and single other characters, as SentencePiece cuts them, so that
    no piece joins a word and the full stop behind it. The first run carries the mark of the word's beginning.
    """
    runs: Counter[str] = Counter()
    characters: Counter[str] = Counter()
    for word, count in words.items():
        for run in _RUN.findall(WORD_START + word):
            runs[run] += count
            for character in run:
                characters[character] += count
    wanted, seen, alphabet = CHARACTER_COVERAGE * characters.total(), 0, set()
    for character, count in sorted(characters.items(), key=lambda item: (-item[1], item[0]))[:most_characters]:
        if seen >= wanted:
            break
        alphabet.add(character)
        seen += count
    kept, size = [], 0
    for run, count in sorted(runs.items(), key=lambda item: (-item[1], item[0])):
        taken = 2 * len(run) + 3  # once as it is, once with an ending
        if size + taken > TRAINING_CHARACTERS:
            continue  # one endless run must not shut out the words behind it
        size += taken
        if alphabet.issuperset(run):
            kept.append((run, count))
    return kept


def _repeat_runs(runs: list[tuple[str, int]], endings: str) -> Iterator[str]:
    """Text in which each run stands as often as it was counted, the trainer takes text, and once with an ending.

    The trainer's first pieces are strings found in two different words at least. A run such as "this", which is part of
    no other, would never be one, however often it stands in the text; so each is made part of a second word.
    """
    for number, (run, count) in enumerate(runs):
        full, rest = divmod(count, _FEED_WORDS)
        for _ in range(full):
            yield (run + " ") * _FEED_WORDS
        yield (run + " ") * rest + run + endings[number % len(endings)]


def _repeatable_scores(trained: dict[str, float]) -> dict[str, float]:
    """Scores without what differs from run to run.

    Characters that the trainer dropped and had to add again get its lowest score plus 0, 1, 2 … penalty steps in the
    order of a hash table: they all get the lowest score here. The others are rounded.
    """
    single = [score for piece, score in trained.items() if len(piece) == 1]
    lowest = min(single, default=0.0)

    def is_added(piece: str, score: float) -> bool:
        steps = (score - lowest) / _PENALTY_STEP
        return len(piece) == 1 and steps < len(single) and abs(steps - round(steps)) < _PENALTY_STEP

    return {piece: round(lowest if is_added(piece, score) else score, SCORE_DIGITS) for piece, score in trained.items()}
