"""The export command finds out what a folder holds, writes it as a stock folder, and touches nothing of a run."""

import shutil
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard

from electra_albert.apps import export
from electra_albert.hub.load import locate, read_stored
from tests.apps.conftest import Finished
from tests.apps.tiny_run import Ended, assert_refused, call, sha256
from tests.apps.tiny_stock import write_stock


def run(model: Path, folder: Path, *more: object) -> Ended:
    return call(export.main, "--model", model, "--output_dir", folder, *more)


def files_in(folder: Path) -> dict[str, str]:
    return {path.name: sha256(path) for path in folder.iterdir() if path.name != "README.md"}  # which has the scores


@pytest.mark.parametrize(("place", "kind"), [("", "generator"), ("", "discriminator"), ("checkpoints", "generator")])
def test_export_of_a_run_or_its_last_checkpoint_is_the_folder_that_the_run_wrote(
    finished: Finished, tmp_path: Path, place: str, kind: str
) -> None:
    model, folder = max((finished.folder / place).glob("step-*"), default=finished.folder), tmp_path / "a" / "b"
    ended = run(model, folder, *(("--kind", kind) if kind == "discriminator" else ()))
    assert (ended.code, ended.err, ended.out) == (0, "", f"{kind} written to {folder}\n")
    assert files_in(folder) == files_in(finished.folder / kind)


def test_a_checkpoint_that_is_not_as_it_was_written_is_refused(finished: Finished, tmp_path: Path) -> None:
    copied = shutil.copytree(max(finished.folder.glob("checkpoints/step-*")), tmp_path / "checkpoints" / "step-1")
    content = bytearray((copied / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (copied / "model.safetensors").write_bytes(content)
    assert_refused(run(copied, tmp_path / "out"), 4, "MANIFEST")


FOUND = {  # stock class: the kind that is found, or the one that is named, and what is left aside
    "AlbertForMaskedLM": ("generator", "", ""),
    "AlbertForPreTraining": ("generator", "encoder", "predictions, sentence_order"),
    "BertForPreTraining": ("generator", "generator", "cls.seq_relationship"),
    "ElectraForPreTraining": ("discriminator", "encoder", "discriminator_predictions"),
    "AlbertForSequenceClassification": ("task", "", ""),
    "BertForTokenClassification": ("task", "", ""),
}


@pytest.mark.parametrize("name", FOUND)
def test_the_kind_of_a_folder_is_found_out_and_heads_that_a_named_kind_leaves_aside_are_reported(
    tmp_path: Path, name: str
) -> None:
    found, named, left_aside = FOUND[name]
    write_stock(tmp_path / "stock", name)
    ended = run(tmp_path / "stock", tmp_path / "out")
    assert (ended.code, ended.out) == (0, f"{found} written to {tmp_path / 'out'}\n"), ended.err
    assert (ended.err == "") == (found != named)
    assert run(tmp_path / "out", tmp_path / "again").out == f"{found} written to {tmp_path / 'again'}\n"
    assert files_in(tmp_path / "again") == files_in(tmp_path / "out")
    if named:
        ended = run(tmp_path / "stock", tmp_path / "named", "--kind", named)
        warning = f"warning: not exported, because a model of kind {named} does not use it: {left_aside}"
        assert (ended.code, ended.err.startswith(warning)) == (0, True)


def test_a_half_precision_copy_has_the_licence_and_gives_the_numbers_of_its_rounded_weights(
    finished: Finished, shipped: Path, tmp_path: Path
) -> None:
    assert run(finished.folder, tmp_path, "--dtype", "float16", "--license", "cc-by-sa-4.0").code == 0
    assert files_in(tmp_path) == files_in(shipped / "generator")
    assert ModelCard.load(tmp_path / "README.md").data.to_dict()["license"] == "cc-by-sa-4.0"
    for kind in ("generator", "discriminator"):
        exact, found = (read_stored(locate(path, kind)).tensors for path in (finished.folder, shipped))
        assert all(torch.equal(found[name], tensor.half().float()) for name, tensor in exact.items())


def test_a_runs_folder_and_those_in_it_are_not_written_into(finished: Finished, tmp_path: Path) -> None:
    (tmp_path / "environment.json").touch()
    for folder in (tmp_path, tmp_path / "generator"):
        assert_refused(run(finished.folder, folder), 2, "belongs to a run")
    assert [path.name for path in tmp_path.iterdir()] == ["environment.json"]
    assert run(finished.folder, tmp_path / "exported").code == 0


REFUSED: dict[str, tuple[tuple[object, ...], int, str]] = {  # options after --model and --output_dir
    "the source": (("--output_dir", "stock"), 2, "the model's own folder"),
    "empty output": (("--output_dir", ""), 2, "--output_dir"),
    "a link to nothing": (("--output_dir", "nowhere"), 2, "cannot write"),
    "a kind it is not": (("--kind", "task"), 4, "architecture"),
    "a head it lacks": (("--kind", "discriminator"), 4, "discriminator_predictions"),
    "half precision in a graph": (("--format", "onnx", "--dtype", "float16"), 2, "--dtype"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_exported_is_refused_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.chdir(tmp_path)
    options, code, word = REFUSED[case]
    write_stock(Path("stock"), "AlbertForMaskedLM")
    Path("nowhere").symlink_to("gone")
    before = files_in(Path("stock"))
    assert_refused(call(export.main, "--model", "stock", "--output_dir", "out", *options), code, word)
    assert files_in(Path("stock")) == before
    assert {path.name for path in tmp_path.iterdir()} == {"nowhere", "stock"}
