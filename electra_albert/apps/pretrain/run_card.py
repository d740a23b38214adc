"""The model cards of a pretraining run: its data, scores on held-out text, and loading code."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult

from electra_albert.apps.metrics_table import METRICS
from electra_albert.apps.run_folder import without_folders
from electra_albert.config.pretraining import BUILT_IN_CORPUS, PretrainConfig
from electra_albert.contracts import Metrics, redacted
from electra_albert.data_files import hub_name
from electra_albert.hub import card
from electra_albert.objectives import spec_of

_RUN_CODE = """from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("THIS_FOLDER", subfolder="generator")
generator = AutoModelForMaskedLM.from_pretrained("THIS_FOLDER", subfolder="generator")
encoder = AutoModel.from_pretrained({encoder})"""


def run_facts(config: PretrainConfig, metrics: Metrics, steps: int) -> card.Facts:
    """Facts for a run's model cards: training data and scores on held-out text."""
    corpus = redacted(config.corpus.corpus)
    dataset = None if Path(corpus).exists() else hub_name(corpus)
    name = Path(corpus).absolute().name
    if dataset or "://" in corpus:
        name = without_folders(corpus)
    origin = config.run.init_from
    base = Path(origin).name if origin else None
    text = f"Pretrained by {spec_of(config).description} on the corpus `{name}` for {steps} steps"
    if base:
        text += f", initialized with the weights of `{base}`"
    lines = [f"{text}."]
    generator = spec_of(config).generator_text(config)
    if generator:
        lines.append(f"Generator: {generator}.")
    lines += ["", "| held-out text | value |", "| --- | --- |"]
    for metric, value in metrics.items():
        if not isinstance(value, int):
            score = "-" if value is None else f"{value:.4f}"
            lines.append(f"| {metric.replace('_', ' ')} | {score} |")
    results = [*_results(config, metrics, f"{name}, held out")]
    fields: dict[str, Any] = {
        "language": config.run.language or ("en" if corpus == BUILT_IN_CORPUS else None),
        "license": config.run.license,
        "datasets": [dataset[0]] if dataset else None,
        "base_model": base,
    }
    if results:
        folder = config.run.push_to_hub or config.run.output_dir or corpus
        fields |= {"model_name": Path(folder).absolute().name, "eval_results": results}
    return card.Facts(fields, "\n".join(lines))


def _results(config: PretrainConfig, metrics: Metrics, dataset: str) -> Iterator[EvalResult]:
    """The scores that the hub has a name for."""
    for name, metric in METRICS.items():
        is_trained = name != "generator_accuracy" or config.rtd.trains_generator
        if metric.hub and metrics.get(name) is not None and is_trained:
            title = name.replace("_", " ")
            yield EvalResult(
                "fill-mask", "text", dataset, metric.hub, metrics[name], metric_name=title
            )


def write_card(folder: Path, command: str, config: PretrainConfig, facts: card.Facts) -> None:
    """Write the model card: training data, scores on held-out text, and how to load the models."""
    spec = spec_of(config)
    models = [name for name in ("discriminator", "generator") if (folder / name).is_dir()]
    path = f'"THIS_FOLDER", subfolder="{models[0]}"'
    fields: dict[str, Any] = {"pipeline_tag": "fill-mask", "tags": ["albert", "electra"]}
    # No other objective than sentence order trains the pooler.
    pooler = "" if spec.has_sentence_order else ", add_pooling_layer=False"
    code = _RUN_CODE.format(encoder=path + pooler)
    if "generator" not in models:
        fields["pipeline_tag"] = "feature-extraction"
        code = card.stock_code("AutoModel", path, with_pooler=spec.has_sentence_order)
    if config.model.is_stock:
        fields["library_name"] = "transformers"
    else:
        code = card.OWN_CODE
    text = f"{card.family(config.model)}: {card.describe_shape(config.model)}.\n\n{facts.text}"
    card.write_card(folder, card.Facts(fields | dict(facts.fields), text), code, command)
