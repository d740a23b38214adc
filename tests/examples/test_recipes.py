"""Every recipe trains a few steps, on generated text and with few examples."""

from pathlib import Path

import pytest
import yaml
from transformers import AlbertConfig, AlbertForMaskedLM, AutoTokenizer

from electra_albert.apps.pretrain import main as pretrain
from tests.apps.tiny_run import ROOT, SHIPPED, english, succeed

RECIPES = sorted((ROOT / "examples" / "recipes").glob("*.yaml"))
FEW = "--eval_examples 2 --per_device_train_batch_size 1 --warmup_steps 1 --device cpu"


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.stem)
def test_a_recipe_trains(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = yaml.safe_load(recipe.read_text(encoding="utf-8"))
    (tmp_path / "my.txt").write_text(english(130), encoding="utf-8")
    words = [*FEW.split(), *(("--flops", "1e11") if "flops" in options else ("--max_steps", "2"))]
    if "init_from" in options:
        words += ["--init_from", str(SHIPPED)]
    else:
        words += ["--vocab_size", "300"]
    succeed(pretrain.main, "--config", str(recipe), "--corpus", "my.txt", *words)
    assert list((tmp_path / options["output_dir"]).glob("*/model.safetensors"))
    assert "Measured" in recipe.read_text() or "measurements" in recipe.read_text()


def test_the_second_run_of_the_english_model_has_a_generator_of_one_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = ROOT / "examples" / "recipes" / "english_2_rtd.yaml"
    options = yaml.safe_load(recipe.read_text(encoding="utf-8"))
    first = AlbertConfig.from_pretrained(f"{SHIPPED}/generator", num_hidden_layers=4)
    AlbertForMaskedLM(first).save_pretrained(options["init_from"])
    AutoTokenizer.from_pretrained(f"{SHIPPED}/generator").save_pretrained(options["init_from"])
    (tmp_path / "my.txt").write_text(english(130), encoding="utf-8")
    few = [*FEW.split(), "--flops", "1e11"]
    succeed(pretrain.main, "--config", str(recipe), "--corpus", "my.txt", *few)
    layers = [
        AlbertConfig.from_pretrained(f"{options['output_dir']}/{name}").num_hidden_layers
        for name in ("generator", "discriminator")
    ]
    assert layers == [1, 4]
