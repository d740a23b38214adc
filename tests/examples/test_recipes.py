"""Every recipe trains a few steps, on generated text and with few examples."""

from pathlib import Path

import pytest
import yaml
from transformers import AlbertConfig, AlbertForMaskedLM, AutoTokenizer

from electra_albert.apps.pretrain import main as pretrain
from tests.apps.tiny_run import ROOT, SHIPPED, english, succeed

RECIPES = {path.stem: path for path in sorted((ROOT / "examples" / "recipes").glob("*.yaml"))}
FEW = "--eval_examples 2 --per_device_train_batch_size 1 --warmup_steps 1 --device cpu"


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_trains(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = RECIPES[name]
    options = yaml.safe_load(recipe.read_text(encoding="utf-8"))
    (tmp_path / "my.txt").write_text(english(130), encoding="utf-8")
    words = [*FEW.split(), *(("--flops", "5e10") if "flops" in options else ("--max_steps", "2"))]
    if name == "english_2_rtd":  # from the first run's generator, which has four layers
        first = AlbertConfig.from_pretrained(f"{SHIPPED}/generator", num_hidden_layers=4)
        AlbertForMaskedLM(first).save_pretrained(options["init_from"])
        AutoTokenizer.from_pretrained(f"{SHIPPED}/generator").save_pretrained(options["init_from"])
    elif "init_from" in options:
        words += ["--init_from", str(SHIPPED)]
    else:
        words += ["--vocab_size", "300"]
    succeed(pretrain.main, "--config", str(recipe), "--corpus", "my.txt", *words)
    folders = list(tmp_path.glob(f"{options['output_dir']}/*/model.safetensors"))
    assert folders
    if name == "english_2_rtd":
        layers = {
            path.parent.name: AlbertConfig.from_pretrained(path.parent).num_hidden_layers
            for path in folders
        }
        assert layers == {"generator": 1, "discriminator": 4}
    assert "Measured" in recipe.read_text() or "measurements" in recipe.read_text()
