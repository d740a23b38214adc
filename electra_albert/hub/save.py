"""Save models as folders, stock or in our format, and upload them.

A folder is written next to its position, reloaded, compared and then moved. Uploads to the Hugging
Face hub (--push_to_hub) use the token of `hf auth login` or HF_TOKEN.
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
from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # its client's
from torch import Tensor, nn

from electra_albert.config.model import ModelConfig
from electra_albert.contracts import LOG, CheckpointError, UsageError, one_line
from electra_albert.files import filling, write_json, writing
from electra_albert.hub import card, find, formats, load, onnx
from electra_albert.hub.modernbert import write_modernbert
from electra_albert.hub.onnx import Model, outputs, probe, quiet, require_close
from electra_albert.hub.weights import WEIGHT_FILES, digest, read_tensors, write_safetensors
from electra_albert.model.electra import Discriminator, Generator
from electra_albert.model.encoder import EncoderModel
from electra_albert.model.task_model import MODERNBERT, TaskModel
from electra_albert.tokenization.tokenizer import save_tokenizer

# The files of a run that are uploaded.
RUN_PARTS = ("README.md", "metrics.jsonl", "generator/*", "discriminator/*", "tokenizer/*")
_ONNX_FILES = {onnx.ONNX_FILE, onnx.DATA_FILE, f"onnx/{onnx.ONNX_FILE}", onnx.QUANTIZED_FILE}
_WRITE_ONNX = {"onnx": onnx.write_onnx, onnx.BROWSER_FORMAT: onnx.write_for_browser}
_WEIGHT_SUFFIXES = (".safetensors", ".pt", ".onnx")
_PT_FILE = "weights.pt"
_READ_BY_STOCK_AS = "pytorch_model.bin"
# Of sentence-transformers.
_MODULES = "modules.json"
_POOLING = "1_Pooling"
# Output name, layer, and the output computed from layer, last hidden states [B, L, D] and pooler
# output [B, D].
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
    pooled_length: int | None = None,
) -> None:
    """Write model, tokenizer and card; `file_format` is that of export or modernbert.

    `dtype` is that of the stored weights, except in ONNX. With pooled_length, the tokens it reads,
    the folder is one of sentence-transformers. `details` are returned by
    `load_task_model`; a task model needs labels, and is_regression for a regression. Weights of
    another format in the folder are removed. Leaves the model in eval mode. Raises CheckpointError
    if stock classes or onnxruntime compute other values than the model, UsageError if the folder
    cannot be written.
    """
    contents, details = _configuration(model, tokenizer, details)
    model.eval()
    with writing(folder):
        with filling(folder, last=_WEIGHT_SUFFIXES) as new:
            write_json(new / find.CONFIG_FILE, contents)
            if details is not None:
                write_json(new / load.TASK_FILE, details)
            save_tokenizer(tokenizer, new, model.config.max_position_embeddings)
            if file_format in _WRITE_ONNX:
                _WRITE_ONNX[file_format](model, new)
            else:
                _write(model, tokenizer, new, file_format, dtype)
            if pooled_length is not None:
                _write_pooling(new, model.config, pooled_length)
            written = {file.relative_to(new).as_posix() for file in new.rglob("*")}
        _remove_stale(folder, written)
        if details is None:
            (folder / load.TASK_FILE).unlink(missing_ok=True)  # of an overwritten model
        form = file_format
        if not model.config.is_stock and form in ("safetensors", "pt"):
            form = "native"
        architecture = _architecture(model)
        described = card.describe(model, architecture, form, dtype, facts or card.Facts())
        card.write_card(folder, *described)


def _remove_stale(folder: Path, written: set[str]) -> None:
    """Remove files that an earlier model or format has left, and log each."""
    stale = {*WEIGHT_FILES, *_ONNX_FILES, _MODULES} - written
    for name in sorted(stale):
        path = folder / name
        if path.exists():
            path.unlink()
            LOG.warning(f"removed {path}, which belonged to another model or format")


def _configuration(
    model: Model, tokenizer: Any, details: Mapping[str, Any] | None
) -> tuple[dict[str, Any], Mapping[str, Any] | None]:
    """Contents of config.json and of TASK_FILE."""
    ids = {
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.cls_token_id,
        "eos_token_id": tokenizer.sep_token_id,
    }
    contents = formats.native_config(asdict(model.config) | ids)
    if model.config.is_stock:
        contents = formats.stock_config(model.config, _architecture(model), ids)
    if getattr(model, "has_energies", False):
        contents[formats.ENERGIES] = True
    if not isinstance(model, TaskModel) or details is None:
        return contents, details
    head = model.head
    details = {**details, "kind": head.kind, "style": head.style}
    labels = details["labels"]
    if load.head_of(details, head.dropout) != head:
        raise ValueError(
            f"labels {labels} do not fit a head of kind {head.kind} with {head.num_labels}"
        )
    contents["classifier_dropout_prob"] = head.dropout
    if head.kind in ("sequence", "token"):
        names = labels or ["score"]  # the output of a regression
        contents["id2label"] = {str(number): name for number, name in enumerate(names)}
        contents["label2id"] = {name: number for number, name in enumerate(names)}
    if head.kind == "sequence":
        contents["problem_type"] = "single_label_classification"
        if details.get("is_regression"):
            contents["problem_type"] = "regression"
        elif details.get("is_multi_label"):
            contents["problem_type"] = formats.MULTI_LABEL
    return contents, details


def _write_pooling(folder: Path, config: ModelConfig, max_seq_length: int) -> None:
    """Make a saved encoder a folder of sentence-transformers.

    The vector of a text is the mean over its tokens.
    """
    (folder / _POOLING).mkdir()
    pooling = {"word_embedding_dimension": config.hidden_size, "pooling_mode_mean_tokens": True}
    write_json(folder / _POOLING / find.CONFIG_FILE, pooling)
    arguments = {"add_pooling_layer": False} if config.is_stock else {}  # ModernBERT has none
    settings = {"max_seq_length": max_seq_length, "model_args": arguments}
    write_json(folder / "sentence_bert_config.json", settings)
    package = "sentence_transformers.models"
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": f"{package}.Transformer"},
        {"idx": 1, "name": "1", "path": _POOLING, "type": f"{package}.Pooling"},
    ]
    write_json(folder / _MODULES, modules)


def _architecture(model: Model) -> str:
    if isinstance(model, TaskModel):
        return model.head.architecture
    if isinstance(model, EncoderModel) or model.predictions is None:
        return "AlbertModel"
    if model.sentence_order:
        return "AlbertForPreTraining"
    return "AlbertForMaskedLM"


def _write(
    model: Model, tokenizer: Any, folder: Path, file_format: str, dtype: torch.dtype
) -> None:
    """Write the weights into a folder with all other files, reload and compare them."""
    is_stock = model.config.is_stock
    message = f"{folder.parent} is not written"
    if file_format == MODERNBERT:
        state = write_modernbert(model, tokenizer, folder)
    elif is_stock:
        state = formats.to_stock(model.state_dict())
    else:
        state = formats.to_native(model.state_dict())
    tensors = {name: tensor.to(dtype) for name, tensor in state.items()}
    too_large = [name for name, tensor in tensors.items() if not tensor.isfinite().all()]
    if too_large:
        raise CheckpointError(f"{message}: {dtype} cannot hold {too_large[0]}; export as float32")
    weights = folder / WEIGHT_FILES[0]
    if file_format == "pt":
        weights = folder / _READ_BY_STOCK_AS
        content = io.BytesIO()  # torch.save to a full disk raises other errors than OSError
        torch.save(tensors, content)
        weights.write_bytes(content.getbuffer())
    else:
        write_safetensors(tensors, weights)
    written = read_tensors(weights)
    expected = {name: tensor.float() for name, tensor in tensors.items()}
    if digest(written) != digest(expected):
        raise CheckpointError(
            f"{message}: {weights.name} differs from the model after reading it again"
        )
    if is_stock:
        rounded = model
        if dtype != torch.float32:
            rounded = copy.deepcopy(model).to(dtype).float()
        _check_against_stock(rounded, written, folder, message)
    if file_format == "pt":
        weights.rename(folder / _PT_FILE)


def _load_stock(model: Model, architecture: str, folder: Path) -> tuple[Any, dict[str, Any]]:
    """The stock model in float32, and the names that its class misses or does not expect."""
    import transformers

    options: dict[str, Any] = {"dtype": torch.float32, "output_loading_info": True}
    if architecture == "AlbertModel":
        names = [name for name, _ in model.named_modules()]
        options["add_pooling_layer"] = any(name.endswith("pooler") for name in names)
    with quiet():
        stock_class = getattr(transformers, architecture)
        loaded: tuple[Any, dict[str, Any]] = stock_class.from_pretrained(
            str(folder), local_files_only=True, **options
        )
    return loaded


def _check_against_stock(
    model: Model, written: Mapping[str, Tensor], folder: Path, message: str
) -> None:
    """Raise CheckpointError unless the stock class computes the same as `model`.

    Extra heads are stock layers.
    """
    architecture = _architecture(model)
    is_choice = architecture == "AlbertForMultipleChoice"
    stock, report = _load_stock(model, architecture, folder)
    heads = _extra_heads(model, stock.config)
    known = set()
    for prefix, (_, head, _) in heads.items():
        known |= {f"{prefix}.{name}" for name in head.state_dict()}
    missing = set(report["missing_keys"]) | (known - written.keys())
    unexpected = set(report["unexpected_keys"]) - known
    faults = sorted(missing | unexpected)
    if faults:
        raise CheckpointError(f"{message}: its weights and {architecture} disagree on {faults[0]}")
    inputs = probe(model.config)
    device = next(model.parameters()).device
    with torch.no_grad():
        our_inputs = [ids.to(device) for ids in inputs]
        ours = outputs(model, *our_inputs)
        stock_inputs = [ids[None] if is_choice else ids for ids in inputs]
        stock_outputs = stock.eval()(*stock_inputs, output_hidden_states=True)
        last = stock_outputs["hidden_states"][-1]
        logits = stock_outputs.get("prediction_logits")
        logits = stock_outputs.get("logits", logits)
        theirs = {"last_hidden_state": last, **stock_outputs}
        theirs |= {"logits": logits, "prediction_logits": logits}
        for prefix, (name, head, compute) in heads.items():
            weights = {key: written[f"{prefix}.{key}"] for key in head.state_dict()}
            head.load_state_dict(weights)
            theirs[name] = compute(head.eval(), last, stock_outputs.get("pooler_output"))
    for name, value in ours.items():
        same = theirs[name]
        if is_choice:
            same = same.view(value.shape)
        difference = f"transformers computes other {name} than our model"
        require_close(value.cpu(), same, f"{message}: {difference}")


def _extra_heads(model: Model, config: Any) -> dict[str, _Head]:
    """Stock layers for heads the stock class lacks, by prefix in the file; see _Head."""
    from transformers import ElectraConfig
    from transformers.models.albert.modeling_albert import AlbertSOPHead
    from transformers.models.electra.modeling_electra import ElectraDiscriminatorPredictions

    heads: dict[str, _Head] = {}
    width = model.config.hidden_size
    if isinstance(model, Generator) and model.pooler is not None:
        layer = nn.Linear(width, width)
        heads["albert.pooler"] = (
            "pooler_output",
            layer,
            lambda head, last, _: head(last[:, 0]).tanh(),
        )
    if isinstance(model, TaskModel) and model.head.output_name == "electra_classifier":
        layer = nn.Linear(width, model.head.num_labels)
        heads["electra_classifier"] = ("logits", layer, lambda head, last, _: head(last[:, 0]))
    if isinstance(model, Discriminator):
        electra = ElectraConfig(hidden_size=width, hidden_act=model.config.hidden_act)
        detector = ElectraDiscriminatorPredictions(electra)
        heads["discriminator_predictions"] = ("logits", detector, lambda head, last, _: head(last))
        if model.sentence_order is not None and model.predictions is None:
            order = AlbertSOPHead(config)
            heads["sop_classifier"] = ("sop_logits", order, lambda head, _, pooled: head(pooled))
    return heads


def create_repository(name: str, *, is_private: bool = False) -> None:
    """Create the model repository OWNER/NAME unless it exists.

    Called before the training, so that a missing login is known early. Raises UsageError if the hub
    refuses or is not reached.
    """
    with _one_line_errors(name, "check name, login (hf auth login) and network"):
        hub = HfApi()
        hub.create_repo(name, private=is_private or None, exist_ok=True)
        is_public = is_private and not hub.repo_info(name).private
    if is_public:
        raise UsageError(
            f"--push_to_hub {name} exists and is public; make it private, or give another name"
        )


def upload(
    folder: Path,
    name: str,
    message: str,
    parts: Sequence[str] = (),
    revision: str | None = None,
) -> None:
    """Upload a folder, or the files in it that match `parts`, in one commit.

    A `revision` is a branch of the repository; it is created if necessary. Raises UsageError as
    create_repository.
    """
    with _one_line_errors(name, f"{folder} is complete: upload it by the same command again"):
        hub = HfApi()
        if revision is not None:
            hub.create_branch(name, branch=revision, exist_ok=True)
        commit = hub.upload_folder(
            repo_id=name,
            folder_path=folder,
            commit_message=message,
            allow_patterns=[*parts] or None,
            revision=revision,
        )
    LOG.info(f"uploaded {folder} to {commit.repo_url}")


@contextmanager
def _one_line_errors(name: str, advice: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, RuntimeError, HTTPError) as error:
        raise UsageError(f"--push_to_hub {name}: {one_line(error)}; {advice}") from error
