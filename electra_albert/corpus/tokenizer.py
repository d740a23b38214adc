"""Train, load, save and identify an ALBERT tokenizer, always through the pipeline stock transformers gives it.

Normaliser and pre-tokenizer are those `AlbertTokenizer` rebuilds from the vocabulary whatever a file says, so ids found
here are the ids `AutoTokenizer` finds in an exported folder. Paper: ALBERT section 4.1 (Unigram pieces).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from electra_albert.contracts import CheckpointError, DataError, UsageError
from electra_albert.corpus.charsmap import check_charsmap, read_charsmap

if TYPE_CHECKING:
    from transformers import AlbertTokenizer

SPECIAL_PIECES = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")  # ids 0 to 4
PAD_ID, UNK_ID, CLS_ID, SEP_ID, MASK_ID = range(5)
MODEL_INPUT_NAMES = ["input_ids", "token_type_ids", "attention_mask"]  # stock leaves token_type_ids out

CHARACTER_COVERAGE = 0.9999  # the rarest characters beyond it become <unk>, as in SentencePiece, and take no pieces
TRAINING_CHARACTERS = 1_000_000  # of distinct words; below the trainer's seed size, whose cut would not repeat
SCORE_DIGITS = 5
_PENALTY_STEP = 1e-4  # the trainer spaces the scores of characters it has to add by this, in no fixed order
_FEED_WORDS = 1000
# Characters for private use that end the second word; so many that no piece which holds one is ever frequent.
_ENDINGS = "".join(chr(0xF0000 + number) for number in range(1024))
_LARGEST_FILE_BYTES = 64 << 20
_LONGEST_PIECE = 16
WORD_START = "▁"
_RUN = re.compile(rf"{WORD_START}?(?:[^\W\d_]+|\d+|.)", re.DOTALL)


def train_tokenizer(sentences: Iterable[str], vocab_size: int, do_lower_case: bool) -> AlbertTokenizer:
    """Unigram pieces learned from `sentences`; fewer than `vocab_size` where the text has not that many.

    Repeats bit for bit: the trainer is handed the counted words in a fixed order, what it leaves to chance (the last
    bits of the scores, the order of the characters it adds itself) is rounded off or put in order.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers
    from tokenizers.trainers import UnigramTrainer
    from transformers import AlbertTokenizer

    normalizer = AlbertTokenizer(do_lower_case=do_lower_case).backend_tokenizer.normalizer
    words: Counter[str] = Counter()
    for sentence in sentences:
        words.update(normalizer.normalize_str(sentence).split())
    kept = _training_runs(words, most_characters=max(1, (vocab_size - len(SPECIAL_PIECES)) // 2))
    if not kept:
        raise DataError("the corpus holds no text to train a tokenizer on; give it some sentences")
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
    return _build([(piece, 0.0) for piece in SPECIAL_PIECES] + ordered, {"do_lower_case": do_lower_case})


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
        size += 2 * len(run) + 3  # once as it is, once with an ending
        if size > TRAINING_CHARACTERS:
            break
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


def load_tokenizer(folder: Path) -> AlbertTokenizer:
    """The tokenizer in `folder`: one of ours, or a stock ALBERT one.

    Nothing of a foreign tokenizer.json is run: its pieces are read, checked and put into a fresh AlbertTokenizer.
    Raises UsageError where there is no tokenizer, CheckpointError where it is not an ALBERT one.
    """
    if not folder.is_dir():
        raise UsageError(f"tokenizer folder {folder} does not exist; name a folder that holds tokenizer.json")
    file = folder / "tokenizer.json"
    if not file.is_file():
        if (folder / "spiece.model").is_file():
            return _load_sentencepiece(folder)
        raise UsageError(f"{folder} holds no tokenizer.json; name the folder of an ALBERT tokenizer")
    content = _read_json(file)
    options = _read_options(folder / "tokenizer_config.json")
    vocab = _checked_vocab(file, content)
    charsmap = read_charsmap(content.get("normalizer"))
    if charsmap is not None:
        problem = check_charsmap(charsmap)
        if problem:
            raise CheckpointError(f"{file}: its character map is damaged ({problem}); fetch the tokenizer again")
        options["_spm_precompiled_charsmap"] = charsmap
    return _build(vocab, options)


def _load_sentencepiece(folder: Path) -> AlbertTokenizer:
    from importlib.util import find_spec

    from transformers import AlbertTokenizer

    if find_spec("sentencepiece") is None or find_spec("google.protobuf") is None:
        raise UsageError(
            f"{folder} holds only spiece.model, which needs two more packages: pip install sentencepiece protobuf"
        )
    options = _read_options(folder / "tokenizer_config.json")
    loaded = AlbertTokenizer.from_pretrained(str(folder), local_files_only=True, **options)
    content = json.loads(loaded.backend_tokenizer.to_str())
    charsmap = read_charsmap(content.get("normalizer"))
    if charsmap is not None:
        options["_spm_precompiled_charsmap"] = charsmap
    return _build(_checked_vocab(folder / "spiece.model", content), options)


def _read_json(file: Path) -> dict[str, Any]:
    if file.stat().st_size > _LARGEST_FILE_BYTES:
        raise CheckpointError(f"{file} is larger than {_LARGEST_FILE_BYTES >> 20} MB, too large for a tokenizer")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as problem:  # a ValueError also where it is not UTF-8
        raise CheckpointError(f"{file} is not JSON ({str(problem)[:80]}); fetch the tokenizer again") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{file} holds no JSON object; fetch the tokenizer again")
    return content


def _read_options(file: Path) -> dict[str, Any]:
    """do_lower_case and keep_accents, as stock reads them; its defaults where they are not given."""
    content = _read_json(file) if file.is_file() else {}
    options = {"do_lower_case": content.get("do_lower_case", True), "keep_accents": content.get("keep_accents", False)}
    for name, value in options.items():
        if not isinstance(value, bool):
            raise CheckpointError(f"{file}: {name}={value!r} is neither true nor false; mend it")
    return options


def _checked_vocab(file: Path, content: dict[str, Any]) -> list[tuple[str, float]]:
    model = content.get("model")
    kind = model.get("type") if isinstance(model, dict) else None
    if not isinstance(model, dict) or kind != "Unigram":
        raise CheckpointError(f"{file} holds a tokenizer of type {kind}, not Unigram; name an ALBERT tokenizer")
    rows = model.get("vocab")
    if not isinstance(rows, list) or not all(_is_piece(row) for row in rows):
        raise CheckpointError(f"{file}: a piece is not a (text, finite score) pair; fetch the tokenizer again")
    pieces = [row[0] for row in rows]
    if len(set(pieces)) < len(pieces):
        twice = next(piece for piece, count in Counter(pieces).items() if count > 1)
        raise CheckpointError(f"{file}: the piece {twice!r} stands in it twice; fetch the tokenizer again")
    if tuple(pieces[: len(SPECIAL_PIECES)]) != SPECIAL_PIECES or model.get("unk_id") != UNK_ID:
        wanted = " ".join(SPECIAL_PIECES)
        raise CheckpointError(f"{file}: ids 0 to 4 are not {wanted}; name an ALBERT tokenizer")
    for token in content.get("added_tokens") or ():
        number, text = (token.get("id"), token.get("content")) if isinstance(token, dict) else (None, None)
        if not isinstance(number, int) or not 0 <= number < len(pieces) or pieces[number] != text:
            raise CheckpointError(f"{file}: added token {text!r} is not among its pieces; name an ALBERT tokenizer")
    return [(piece, float(score)) for piece, score in rows]


def _is_piece(row: object) -> bool:
    if not isinstance(row, list) or len(row) != 2:
        return False
    piece, score = row
    is_number = isinstance(score, int | float) and not isinstance(score, bool)
    return isinstance(piece, str) and piece != "" and is_number and math.isfinite(score)


def save_tokenizer(tokenizer: AlbertTokenizer, folder: Path, max_length: int) -> None:
    """Write the stock files, from which `AutoTokenizer` gives the same ids and token_type_ids."""
    folder.mkdir(parents=True, exist_ok=True)
    beside = folder / f".writing-{os.getpid()}"
    tokenizer.save_pretrained(str(beside))
    file = beside / "tokenizer_config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    config |= {"model_input_names": MODEL_INPUT_NAMES, "model_max_length": max_length}
    file.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    for written in sorted(beside.iterdir(), reverse=True):  # tokenizer.json last: with it the folder counts
        os.replace(written, folder / written.name)
    beside.rmdir()


def fingerprint(tokenizer: AlbertTokenizer) -> str:
    """A hash of everything the ids depend on: pieces, scores, normaliser and pre-tokenizer."""
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    identity = [content["model"]["vocab"], content["normalizer"], content["pre_tokenizer"]]
    return hashlib.blake2b(json.dumps(identity).encode(), digest_size=16).hexdigest()


def _build(vocab: list[tuple[str, float]], options: dict[str, Any]) -> AlbertTokenizer:
    from transformers import AlbertTokenizer

    return AlbertTokenizer(vocab=vocab, model_input_names=MODEL_INPUT_NAMES, **options)


class Piece(NamedTuple):
    """A token as it is shown to people."""

    text: str
    starts_word: bool


def describe_pieces(tokenizer: AlbertTokenizer, ids: list[int]) -> list[Piece]:
    """The text of each id without its marks, and whether a word begins with it."""
    pieces = tokenizer.convert_ids_to_tokens(ids)
    return [Piece(piece.removeprefix(WORD_START) or piece, piece.startswith(WORD_START)) for piece in pieces]
