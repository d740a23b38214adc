"""The card of a pair of models: shapes, how they were trained and score, the command that repeats it, how to use them.

It is committed with the weights, so of every path it tells no more than the last name.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from electra_albert.apps.model_card import marked
from electra_albert.contracts import CheckpointError, UsageError

if TYPE_CHECKING:
    from electra_albert.apps.export_pair import Pair
    from electra_albert.contracts import Metrics

_LARGEST_CARD_BYTES = 1 << 16
_TOLD = ("vocab_size", "embedding_size", "hidden_size", "num_hidden_layers", "num_hidden_groups", "num_attention_heads")
_IN_FRONT_OF_A_NAME = re.compile(r"[^,=:]*[/\\]")
_USE = """## Use

`THIS_FOLDER` stands for where this lies. In a checkout of ELECTRA-ALBERT the first two commands take a model below
`data/models` by themselves as long as there is no run.

```bash
python LM_DEMO.py --gen THIS_FOLDER
python Finetuning.py --model THIS_FOLDER
python -m electra_albert.apps.export --model THIS_FOLDER --kind discriminator --output_dir discriminator
```

The last writes a float32 folder that stock `transformers` loads, `--kind generator` one for its fill-mask pipeline.

```python
from electra_albert.apps.inference import load_model

model = load_model("THIS_FOLDER")
print(model.fill_mask("The capital of France is [MASK]."))
```

`sha256sum -c SHA256SUMS` tells whether the files are as they were written.

## Licence

The weights are under Apache-2.0.
"""


def pair_card(name: str, models: Pair, source: Path, scores: str, size_bytes: int) -> str:
    """Markdown with the front matter the hub reads; what the run in `source` says of itself, where it is one."""
    from electra_albert.apps.closing import count_parameters

    shared = count_parameters(models.generator.embeddings)
    own = [count_parameters(model) - shared for model in models]
    order = " and sentence order" if models.discriminator.sentence_order is not None else ""
    text = "\n".join(
        [
            "---",
            "license: apache-2.0",
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
            *([*_section("Scores", scores.strip())] if scores.strip() else []),
            _USE,
        ]
    )
    return marked(text)


def read_scores(file: Path) -> str:
    """Markdown for the card; UsageError where the file is not there, no text, or longer than a card may be."""
    try:
        with file.open("rb") as opened:
            content = opened.read(_LARGEST_CARD_BYTES + 1)
        text = content.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"--card {file} cannot be read ({reason}); name a Markdown file") from None
    if len(content) > _LARGEST_CARD_BYTES:
        raise UsageError(f"--card {file} is longer than {_LARGEST_CARD_BYTES} bytes; leave the details elsewhere")
    return text


def without_folders(command: str) -> str:
    """A command with the last name of each path alone, so that it tells nothing of the machine it was typed on."""
    return shlex.join(_IN_FRONT_OF_A_NAME.sub("", word) for word in shlex.split(command))


def _section(title: str, *lines: str) -> list[str]:
    return [f"## {title}", "", *lines, ""]


def _shape_table(models: Pair) -> list[str]:
    rows = [
        f"| {name} | {getattr(models.generator.config, name)} | {getattr(models.discriminator.config, name)} |"
        for name in _TOLD
    ]
    return ["| | generator | discriminator |", "| --- | ---: | ---: |", *rows]


def _run_lines(source: Path) -> list[str]:
    """What the files of a run say of it: corpus, length, held-out scores, command."""
    from electra_albert.apps.run_folder import COMMAND, CONFIG, read_options
    from electra_albert.apps.scores import read_evaluations
    from electra_albert.training.monitor import EVALUATION_PREFIX

    lines: list[str] = []
    has_metrics = (source / "metrics.jsonl").is_file()
    evaluations = read_evaluations(source, EVALUATION_PREFIX) if has_metrics else []
    if (source / CONFIG).is_file():
        options = read_options(source / CONFIG, f"{source}: its {CONFIG}")
        lines += _section("Training", _training_line(options, evaluations[-1] if evaluations else {}))
        if (source / COMMAND).is_file():
            command = _command(source / COMMAND)
            lines += ["Repeated by, with the paths of your own machine:", "", "```bash", command, "```", ""]
    if evaluations:
        lines += _section("On held-out text of the same corpus", *_metrics_table(evaluations[-1]))
    return lines


def _command(file: Path) -> str:
    try:
        return without_folders(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # ValueError: an open quotation mark, or no UTF-8
        raise CheckpointError(f"{file} holds no command line ({error}); mend it, or put it elsewhere") from None


def _training_line(options: dict[str, Any], last: Metrics) -> str:
    told = {name: options.get(name, "?") for name in ("objective", "preset", "max_seq_length", "seed")}
    corpus = _IN_FRONT_OF_A_NAME.sub("", str(options.get("corpus", "?")))
    line = (
        f"Objective `{told['objective']}`, preset `{told['preset']}`, corpus `{corpus}`, rows of "
        f"{told['max_seq_length']} tokens, seed {told['seed']}"
    )
    if options.get("init_from"):
        line += f", beginning with the weights of `{_IN_FRONT_OF_A_NAME.sub('', str(options['init_from']))}`"
    length = [f"{last[name]:,} {told}" for name, told in (("step", "steps"), ("tokens", "tokens")) if last.get(name)]
    return f"{line}: {' and '.join(length)}." if length else f"{line}."


def _metrics_table(metrics: Metrics) -> list[str]:
    rows = [
        f"| {name.replace('_', ' ')} | {'-' if value is None else f'{value:.4f}'} |"
        for name, value in metrics.items()
        if name not in ("step", "tokens", "epoch")
    ]
    return ["| measure | value |", "| --- | ---: |", *rows]
