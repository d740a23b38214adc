"""The card of a pair of models: shapes, how they were trained and score, the command that repeats it, how to use them.

It is committed with the weights, so of what it finds in a run it tells no folders; what it is handed stands as it is.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from electra_albert.apps.export.folder import LARGEST_CARD_BYTES
from electra_albert.apps.export.model_card import FOR_ITS_MAKER, marked
from electra_albert.apps.export.pair_paths import last_name
from electra_albert.apps.export.pair_repeat import recorded, repeat_lines
from electra_albert.contracts import UsageError

if TYPE_CHECKING:
    from electra_albert.apps.export.pair import Pair
    from electra_albert.contracts import Metrics

_SIZES = (
    "vocab_size",
    "embedding_size",
    "hidden_size",
    "num_hidden_layers",
    "num_hidden_groups",
    "num_attention_heads",
)
_USE = """## Use

`THIS_FOLDER` stands for where this lies. In a checkout of ELECTRA-ALBERT the first two commands take a model below
`data/models` by themselves as long as `runs/` holds no finished run.

```bash
python LM_DEMO.py --gen THIS_FOLDER
python Finetuning.py --model THIS_FOLDER
electra-albert export --model THIS_FOLDER --kind discriminator --output_dir discriminator
```

The last writes a float32 folder that stock `transformers` loads, `--kind generator` one for its fill-mask pipeline.

```python
from electra_albert.inference.model import load_model

model = load_model("THIS_FOLDER")
print(model.fill_mask("The capital of France is [MASK]."))
```

`sha256sum -c SHA256SUMS` tells whether the files are as they were written.
"""


class Told(NamedTuple):
    """What a card says beside what is found in the run."""

    scores: str = ""  # Markdown
    license: str | None = None  # its id


def pair_card(name: str, models: Pair, source: Path, told: Told, size_bytes: int) -> str:
    """Markdown with the front matter the hub reads; what the run in `source` says of itself, where it is one."""
    from electra_albert.apps.pretrain.closing import count_parameters

    shared = count_parameters(models.generator.embeddings)
    own = [count_parameters(model) - shared for model in models]
    order = " and sentence order" if models.discriminator.sentence_order is not None else ""
    text = "\n".join(
        [
            "---",
            *([f"license: {told.license}"] if told.license else []),
            "pipeline_tag: fill-mask",
            "tags: [albert, electra]",
            "---",
            "",
            f"# {name}",
            "",
            f"A generator, which fills masks, and a discriminator, which finds replaced tokens and is the one to "
            f"fine-tune: two ALBERT encoders pretrained together by replaced-token detection{order}. "
            f"`pair.safetensors` holds both in float16, {size_bytes:,} bytes; they share {shared:,} parameters "
            f"(tokens, positions, segments), and have {own[0]:,} and {own[1]:,} of their own.",
            "",
            *_shape_table(models),
            "",
            *_run_lines(source),
            *(_section("Scores", told.scores.strip()) if told.scores.strip() else []),
            _USE,
            *(_section("Licence", f"The weights are under `{told.license}`.") if told.license else [FOR_ITS_MAKER, ""]),
        ]
    )
    return marked(text)


def read_scores(file: Path) -> str:
    """Markdown for the card; UsageError where the file is not there, no text, JSON, or longer than a card may be."""
    try:
        with file.open("rb") as opened:
            content = opened.read(LARGEST_CARD_BYTES + 1)
        text = content.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"--card {file} cannot be read ({reason}); name a Markdown file") from None
    if len(content) > LARGEST_CARD_BYTES:
        raise UsageError(f"--card {file} is longer than {LARGEST_CARD_BYTES} bytes; leave the details elsewhere")
    if _is_json(text):
        raise UsageError(f"--card {file} holds JSON, and the card is Markdown; name a Markdown file")
    return text


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict | list)
    except (ValueError, RecursionError):
        return False


def say_left_out(source: Path) -> None:
    """A notice where `source` is no run: its card, or its run's, may tell what the one that is made here cannot."""
    from electra_albert.apps.run_folder import CONFIG

    if not (source / CONFIG).is_file():
        print(
            f"notice: {source} is no run, so the card says nothing of its training, its scores and the command that "
            "repeats it; --card adds what you know",
            file=sys.stderr,
        )


def _section(title: str, *lines: str) -> list[str]:
    return [f"## {title}", "", *lines, ""]


def _shape_table(models: Pair) -> list[str]:
    rows = [
        f"| {name} | {getattr(models.generator.config, name)} | {getattr(models.discriminator.config, name)} |"
        for name in _SIZES
    ]
    return ["| | generator | discriminator |", "| --- | ---: | ---: |", *rows]


def _run_lines(source: Path) -> list[str]:
    """What the files of a run say of it: corpus, length, command and options, machine, held-out scores."""
    from electra_albert.apps.pretrain.scores import read_evaluations
    from electra_albert.apps.run_folder import CONFIG, read_options
    from electra_albert.training.monitor import EVALUATION_PREFIX

    lines: list[str] = []
    has_metrics = (source / "metrics.jsonl").is_file()
    evaluations = read_evaluations(source, EVALUATION_PREFIX) if has_metrics else []
    if (source / CONFIG).is_file():
        options = read_options(source / CONFIG, f"{source}: its {CONFIG}")
        told = _corpus_told(str(options.get("corpus", "?")), recorded(source).get("sources"))
        lines += _section("Training", _training_line(options, told, evaluations[-1] if evaluations else {}))
        lines += repeat_lines(source, options)
    if evaluations:
        lines += _section("On held-out text of the same corpus", *_metrics_table(evaluations[-1]))
    return lines


def _training_line(options: dict[str, Any], corpus: str, last: Metrics) -> str:
    told = {name: options.get(name, "?") for name in ("objective", "preset", "max_seq_length", "seed")}
    line = (
        f"Objective `{told['objective']}`, preset `{told['preset']}`, corpus {corpus}, rows of "
        f"{told['max_seq_length']} tokens, seed {told['seed']}"
    )
    if options.get("init_from"):
        line += f", beginning with the weights of `{last_name(str(options['init_from']))}`"
    length = [f"{last[name]:,} {unit}" for name, unit in (("step", "steps"), ("tokens", "tokens")) if last.get(name)]
    return f"{line}: {' and '.join(length)}." if length else f"{line}."


def _corpus_told(corpus: str, sources: object) -> str:
    """The corpus by its last name, and of a list of sources what it listed when the run began."""
    name = f"`{last_name(corpus)}`"
    if not isinstance(sources, list) or not sources:
        return name
    listed = ", ".join(
        f"`{last_name(source['corpus'])}`" + (f" of weight {source['weight']:g}" if source["weight"] else "")
        for source in sources
    )
    return f"{name} ({listed})"


def _metrics_table(metrics: Metrics) -> list[str]:
    rows = [
        f"| {name.replace('_', ' ')} | {'-' if value is None else f'{value:.4f}'} |"
        for name, value in metrics.items()
        if name not in ("step", "tokens", "epoch")
    ]
    return ["| measure | value |", "| --- | ---: |", *rows]
