"""Save models as folders, stock or in our format: write to a temporary folder, reload, compare, then move; uploads.

Uploads to the Hugging Face hub (--push_to_hub) use the token of `hf auth login` or HF_TOKEN.
"""

import copy
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import HfApi
from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # that of its HTTP client
from torch import Tensor, nn

from electra_albert.contracts import LOG, CheckpointError, UsageError
from electra_albert.corpus.tokenizer import save_tokenizer
from electra_albert.files import filling, write_json
from electra_albert.hub import card, find, formats, load, onnx
from electra_albert.hub.onnx import Model, outputs, probe, quiet, require_close
from electra_albert.hub.weights import WEIGHT_FILES, digest, read_tensors, write_safetensors
from electra_albert.model.electra import Discriminator, Generator
from electra_albert.model.task_model import TaskModel
from electra_albert.model_config import ModelConfig

RUN_PARTS = ("README.md", "metrics.jsonl", "generator/*", "discriminator/*", "tokenizer/*")  # that are uploaded
_ONNX_FILES = {onnx.ONNX_FILE, onnx.DATA_FILE, f"onnx/{onnx.ONNX_FILE}", onnx.QUANTIZED_FILE}
_WRITE_ONNX = {"onnx": onnx.write_onnx, onnx.BROWSER_FORMAT: onnx.write_for_browser}
_WEIGHT_SUFFIXES = (".safetensors", ".pt", ".onnx")
_PT_FILE, _READ_BY_STOCK_AS = "weights.pt", "pytorch_model.bin"
_SPECIAL_TOKENS = {"pad": "pad", "bos": "cls", "eos": "sep"}  # config.json: tokenizer
_CHECKED_LENGTH = 24
_MODULES, _POOLING = "modules.json", "1_Pooling"  # of sentence-transformers
# Output name, layer, and the output computed from layer, last hidden states [B, L, D] and pooler output [B, D].
_Head = tuple[str, nn.Module, Callable[[Any, Tensor, Any], Tensor]]


def save_model(
    model: Model,
    tokenizer: Any,
    folder: Path,
    details: Mapping[str, Any] | None = None,
    facts: card.Facts | None = None,
    *,
    file_format: str = "safetensors",
    dtype: torch.dtype = torch.float32,
) -> None:
    """Write model, tokenizer and card; `file_format` is safetensors, pt, onnx or transformers.js.

    `dtype` is that of the stored weights, except in ONNX. `details` are returned by `load_task_model`; a task model
    needs labels, and is_regression for a regression. Weights of another format in the folder are removed. Leaves the
    model in eval mode. Raises CheckpointError if stock classes or onnxruntime compute other values than the model,
    UsageError if the folder cannot be written.
    """
    architecture, is_stock = _architecture(model), model.config.is_stock
    settings, details = _task_settings(model, details)
    ids = {f"{name}_token_id": getattr(tokenizer, f"{own}_token_id") for name, own in _SPECIAL_TOKENS.items()}
    config = formats.stock_config(model.config, architecture, ids)
    config = config if is_stock else formats.native_config(asdict(model.config) | ids)
    config |= {formats.ENERGIES: True} if getattr(model, "has_energies", False) else {}
    model.eval()
    try:
        with filling(folder, last=_WEIGHT_SUFFIXES) as new:
            write_json(new / find.CONFIG_FILE, {**config, **settings})
            if details is not None:
                write_json(new / load.TASK_FILE, details)
            save_tokenizer(tokenizer, new, model.config.max_position_embeddings)
            write = _WRITE_ONNX.get(file_format)
            write(model, new) if write else _write(model, new, file_format, dtype)
            written = {file.relative_to(new).as_posix() for file in new.rglob("*")}
        for other in sorted({*WEIGHT_FILES, *_ONNX_FILES, _MODULES} - written):
            if (folder / other).exists():
                (folder / other).unlink()
                LOG.warning(f"removed {folder / other}, which belonged to another model or format")
        if details is None:
            (folder / load.TASK_FILE).unlink(missing_ok=True)  # of an overwritten fine-tuned model
        form = file_format if is_stock else "native"
        card.write_card(folder, *card.describe(model, architecture, form, dtype, facts or card.Facts()))
    except OSError as error:
        raise UsageError(f"cannot write the model into {folder} ({error.strerror or error}); free disk space") from None


def write_pooling(folder: Path, config: ModelConfig, max_seq_length: int) -> None:
    """Make a saved encoder a folder of sentence-transformers: the vector of a text is the mean over its tokens."""
    module = "sentence_transformers.models."
    parts = {"": module + "Transformer", _POOLING: module + "Pooling"}
    (folder / _POOLING).mkdir(exist_ok=True)
    pooling = {"word_embedding_dimension": config.hidden_size, "pooling_mode_mean_tokens": True}
    write_json(folder / _POOLING / find.CONFIG_FILE, pooling)
    settings = {"max_seq_length": max_seq_length, "model_args": {"add_pooling_layer": False}}
    write_json(folder / "sentence_bert_config.json", settings)
    modules = [{"idx": i, "name": str(i), "path": path, "type": kind} for i, (path, kind) in enumerate(parts.items())]
    write_json(folder / _MODULES, modules)


def _architecture(model: Model) -> str:
    if isinstance(model, Generator | Discriminator) and model.predictions is not None:
        return "AlbertForMaskedLM" if model.sentence_order is None else "AlbertForPreTraining"
    return model.head.architecture if isinstance(model, TaskModel) else "AlbertModel"


def _task_settings(model: Model, details: Mapping[str, Any] | None) -> tuple[dict[str, Any], Mapping[str, Any] | None]:
    """Settings of the head in config.json, and the contents of TASK_FILE."""
    if not isinstance(model, TaskModel) or details is None:
        return {}, details
    head = model.head
    details = {**details, "kind": head.kind, "style": head.style}
    if load.head_of(details, head.dropout) != head:
        raise ValueError(f"labels {details['labels']} do not fit a head of kind {head.kind} with {head.num_labels}")
    settings: dict[str, Any] = {"classifier_dropout_prob": head.dropout}
    if head.kind in ("sequence", "token"):
        labels = details["labels"] or ["score"]  # the output of a regression
        settings["id2label"] = {str(number): label for number, label in enumerate(labels)}
        settings["label2id"] = {label: number for number, label in enumerate(labels)}
    if head.kind == "sequence":
        settings["problem_type"] = "regression" if details.get("is_regression") else "single_label_classification"
    return settings, details


def _write(model: Model, folder: Path, file_format: str, dtype: torch.dtype) -> None:
    """Write the weights into a folder with all other files, reload and compare them."""
    is_stock, message = model.config.is_stock, f"{folder.parent} is not written"
    state = model.state_dict()
    renamed = formats.to_stock(state) if is_stock else formats.to_native(state)
    tensors = {name: tensor.to(dtype) for name, tensor in renamed.items()}
    if too_large := [name for name, tensor in tensors.items() if not tensor.isfinite().all()]:
        raise CheckpointError(f"{message}: {dtype} cannot hold {too_large[0]}; export as float32")
    weights = folder / (_READ_BY_STOCK_AS if file_format == "pt" else WEIGHT_FILES[0])
    if file_format == "pt":
        content = io.BytesIO()  # torch.save to a full disk raises other errors than OSError
        torch.save(tensors, content)
        weights.write_bytes(content.getbuffer())
    else:
        write_safetensors(tensors, weights)
    written = read_tensors(weights)
    if digest(written) != digest({name: tensor.float() for name, tensor in tensors.items()}):
        raise CheckpointError(f"{message}: {weights.name} differs from the model after reading it again")
    if is_stock:
        rounded = model if dtype == torch.float32 else _rounded(model, dtype)
        _check_against_stock(rounded, written, folder, message)
    if file_format == "pt":
        weights.rename(folder / _PT_FILE)


def _rounded(model: Model, dtype: torch.dtype) -> Model:
    """A copy whose weights are rounded to dtype, as in the file."""
    copied = copy.deepcopy(model)
    state = formats.to_native(model.state_dict())
    copied.load_state_dict({name: tensor.to(dtype).float() for name, tensor in state.items()})
    return copied


def _check_against_stock(model: Model, written: Mapping[str, Tensor], folder: Path, message: str) -> None:
    """Raise CheckpointError unless the stock class, with stock layers for extra heads, computes the same as `model`."""
    import transformers

    architecture = _architecture(model)
    is_choice = architecture == "AlbertForMultipleChoice"
    options: dict[str, Any] = {"local_files_only": True, "dtype": torch.float32, "output_loading_info": True}
    if architecture == "AlbertModel":
        options["add_pooling_layer"] = any(name.endswith("pooler") for name, _ in model.named_modules())
    with quiet():
        stock, report = getattr(transformers, architecture).from_pretrained(str(folder), **options)
    heads = _extra_heads(model, stock.config)
    known = {f"{prefix}.{name}" for prefix, (_, head, _) in heads.items() for name in head.state_dict()}
    faults = sorted({*report["missing_keys"], *(known - written.keys())} | ({*report["unexpected_keys"]} - known))
    if faults:
        raise CheckpointError(f"{message}: its weights and {architecture} disagree on {faults[0]}")
    inputs = probe(model.config, 2, min(_CHECKED_LENGTH, model.config.max_position_embeddings))
    device = next(model.parameters()).device
    with torch.no_grad():
        ours = outputs(model, *(each.to(device) for each in inputs))
        found = stock.eval()(*(each[None] if is_choice else each for each in inputs), output_hidden_states=True)
        theirs = {"last_hidden_state": found["hidden_states"][-1], "logits": found.get("prediction_logits"), **found}
        theirs["prediction_logits"] = theirs["logits"]
        for prefix, (name, head, compute) in heads.items():
            head.load_state_dict({key: written[f"{prefix}.{key}"] for key in head.state_dict()})
            theirs[name] = compute(head.eval(), theirs["last_hidden_state"], found.get("pooler_output"))
    for name, value in ours.items():
        same = theirs[name].view(value.shape) if is_choice else theirs[name]
        require_close(value.cpu(), same, f"{message}: transformers computes other {name} than our model")


def _extra_heads(model: Model, config: Any) -> dict[str, _Head]:
    """Stock layers for heads the stock class lacks, by prefix in the file; see _Head."""
    from transformers import ElectraConfig
    from transformers.models.albert.modeling_albert import AlbertSOPHead
    from transformers.models.electra.modeling_electra import ElectraDiscriminatorPredictions

    heads, width = dict[str, _Head](), model.config.hidden_size
    if isinstance(model, Generator) and model.pooler is not None:
        heads["albert.pooler"] = ("pooler_output", nn.Linear(width, width), lambda h, last, _: h(last[:, 0]).tanh())
    if isinstance(model, TaskModel) and model.head.output_name == "electra_classifier":
        linear = nn.Linear(width, model.head.num_labels)
        heads[model.head.output_name] = ("logits", linear, lambda head, last, _: head(last[:, 0]))
    if isinstance(model, Discriminator):
        electra = ElectraConfig(hidden_size=width, hidden_act=model.config.hidden_act)
        layer = ElectraDiscriminatorPredictions(electra)
        heads["discriminator_predictions"] = ("logits", layer, lambda head, last, _: head(last))
        if model.sentence_order is not None and model.predictions is None:
            heads["sop_classifier"] = ("sop_logits", AlbertSOPHead(config), lambda head, _, pooled: head(pooled))
    return heads


def create_repository(name: str, *, is_private: bool = False) -> None:
    """Create the model repository OWNER/NAME unless it exists. Raises UsageError if the hub refuses or is not reached.

    Called before the training, so that a missing login is known early.
    """
    with _one_line_errors(name, "check name, login (hf auth login) and network"):
        HfApi().create_repo(name, private=is_private or None, exist_ok=True)
        is_public = is_private and not HfApi().repo_info(name).private
    if is_public:
        raise UsageError(f"--push_to_hub {name} exists and is public; make it private, or give another name")


def upload(folder: Path, name: str, message: str, parts: Sequence[str] = (), revision: str | None = None) -> None:
    """Upload a folder, or the files in it that match `parts`, in one commit. Raises UsageError as create_repository.

    A `revision` is a branch of the repository; it is created if necessary.
    """
    with _one_line_errors(name, f"{folder} is complete: upload it by the same command again"):
        if revision is not None:
            HfApi().create_branch(name, branch=revision, exist_ok=True)
        options: dict[str, Any] = {"commit_message": message, "allow_patterns": [*parts] or None, "revision": revision}
        done = HfApi().upload_folder(repo_id=name, folder_path=folder, **options)
    LOG.info(f"uploaded {folder} to {done.repo_url}")


@contextmanager
def _one_line_errors(name: str, advice: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, RuntimeError, HTTPError) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UsageError(f"--push_to_hub {name}: {reason}; {advice}") from error
