"""Options: precedence, config files, invalid ones, and help."""

import os
import sys
import time
from dataclasses import fields, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from electra_albert import cli
from electra_albert.apps import command_line
from electra_albert.apps.finetune import main as finetune
from electra_albert.apps.pretrain import main as pretrain
from electra_albert.apps.pretrain.options import parse_pretraining
from electra_albert.apps.run_folder import format_command
from electra_albert.cli import COMMANDS, main
from electra_albert.config.finetuning import DERIVED, DataConfig
from electra_albert.config.presets import PRESETS
from electra_albert.config.pretraining import CorpusConfig, PretrainConfig
from electra_albert.config.training import TrainingConfig
from electra_albert.contracts import RankLostError, UsageError
from tests import refusals
from tests.apps.tiny_run import assert_refused, call
from tests.refusals import rows


def parse(*argv: object) -> PretrainConfig:
    return parse_pretraining([str(word) for word in argv], "Pretraining.py")[1]


@pytest.mark.parametrize("name", ["tiny", "xxlarge"])
def test_a_preset_sets_its_values_and_keeps_other_defaults(name: str) -> None:
    assert parse("--preset", name) == PRESETS[name]
    assert parse("--preset", name).training.adam_epsilon == TrainingConfig.adam_epsilon


def test_flags_override_config_files_and_config_files_override_presets(tmp_path: Path) -> None:
    small, file = PRESETS["small"], tmp_path / "run.yaml"
    # Plain YAML reads 1e-4 as text.
    file.write_text(
        "preset: small\nlearning_rate: 1e-4\nmodel:\n  hidden_size: 64\n  num_attention_heads: 8\n"
    )
    model = replace(small.model, hidden_size=64, num_attention_heads=8)
    read = parse("--config", file)
    assert read == replace(small, model=model, training=replace(small.training, learning_rate=1e-4))
    assert isinstance(read.training.learning_rate, float)
    flags = ("--learning_rate", 3e-4, "--model.hidden_size", 128)
    flagged = parse("--config", file, *flags)
    assert flagged.training.learning_rate == 3e-4
    assert flagged.model == replace(model, hidden_size=128)
    (tmp_path / "other.yaml").write_text("preset: base\nseed: 3\n")
    both = parse("--config", tmp_path / "other.yaml", "--config", file)  # the later file wins
    assert (both.training.warmup_steps, both.training.seed) == (small.training.warmup_steps, 3)
    assert both.training.max_steps == small.training.max_steps != PRESETS["base"].training.max_steps
    assert parse(*flags, "--config", file) == parse(*flags, f"--config={file}") == flagged


UNKNOWN = rows("""
--lerning_rate 1 | --lerning_rate | did you mean --learning_rate?
--model.hiden_size 64 | --model.hiden_size | did you mean --model.hidden_size?
--frobnicate | no option --frobnicate
--log_gradient_norms true | no option --log_gradient_norms any more | dev/log
--rtd.z_loss 0.1 | no option --rtd.z_loss any more | dev/log
my.txt | 'my.txt' belongs to no option and is not an existing file; write --corpus my.txt
--preset tinny | 'tinny' does not exist | did you mean tiny?
--learning_rate | --learning_rate
""")


def test_an_unknown_option_is_refused_with_a_suggestion() -> None:
    for argv, *words in UNKNOWN:
        assert_refused(call(pretrain.main, *argv.split()), 2, *words)


def test_a_path_without_option_is_the_corpus(in_folder: Path) -> None:
    name = "my texts"
    (in_folder / name).mkdir()
    assert parse(name, "--seed", 3) == parse("--seed", 3, "--corpus", name)
    for argv in ((name, "--corpus", "sample"), (name, name)):
        with pytest.raises(UsageError, match="belongs to no option"):
            parse(*argv)


@pytest.mark.parametrize("name", ["pretrain", "finetune"])
def test_help_is_one_page_with_examples(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit, match="0"):
        main([name, "--help"])
    page = capsys.readouterr().out.splitlines()
    assert len(page) <= 60
    assert any(line.startswith("  --") for line in page)
    examples = [*takewhile(str.strip, page[page.index("examples:") + 1 :])]
    assert all(line.startswith(f"  electra-albert {name} ") for line in examples)
    assert page[0].startswith(f"usage: electra-albert {name} ")


@pytest.mark.parametrize(
    ("started", "expected"),
    [
        ("/checkout/Finetuning.py", "python Finetuning.py"),
        ("/bin/electra-albert", "electra-albert finetune"),
    ],
)
def test_a_command_is_recorded_as_it_was_started(
    monkeypatch: pytest.MonkeyPatch, started: str, expected: str
) -> None:
    monkeypatch.setattr(sys, "argv", [started])
    command = command_line.started_as("finetune", ["--seeds", "2"])
    assert format_command(command) == f"{expected} --seeds 2"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(
    ("command", "busy", "chosen", "expected"),
    [
        ("pretrain", 0.09, {}, "passive"),
        ("finetune", 0.2, {}, "passive"),
        ("pretrain", 0.02, {}, None),
        ("pretrain", 0.2, {"OMP_NUM_THREADS": "1"}, None),
        ("pretrain", 0.2, {"OMP_WAIT_POLICY": "active"}, "active"),
        ("score", 0.2, {}, None),
    ],
)
def test_threads_sleep_while_they_wait_next_to_other_programs_unless_the_user_has_chosen(
    command: str,
    busy: float,
    chosen: dict[str, str],
    expected: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.setenv(name, "")  # so that it is restored
        monkeypatch.delenv(name)
    for name, value in chosen.items():
        monkeypatch.setenv(name, value)
    seconds = iter([100.0, 100.0 + busy])
    monkeypatch.setattr(cli, "_busy_seconds", lambda: next(seconds))
    assert cli.run([command, "--frobnicate"]) == UsageError.exit_code
    assert os.environ.get("OMP_WAIT_POLICY") == expected


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_busy_seconds_rise_with_those_of_this_process() -> None:
    before, mine = cli._busy_seconds(), time.process_time()
    while time.process_time() - mine < 0.2:
        pass
    assert cli._busy_seconds() - before > 0.15


def test_the_console_command_lists_its_commands_and_refuses_others() -> None:
    assert [call(main, word).code for word in ("--help", "--version")] == [0, 0]
    assert all(name in call(main, "--help").out for name in COMMANDS)
    assert_refused(call(main, "pretrian"), 2, "did you mean pretrain?")


@pytest.mark.parametrize(
    ("main", "section"), [(pretrain.main, CorpusConfig), (finetune.main, DataConfig)]
)
def test_help_all_lists_every_option(
    main: Any, section: type, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help-all"])
    page = capsys.readouterr().out
    names = {field.name for field in (*fields(TrainingConfig), *fields(section))}
    assert all(f"--{name} " in page for name in names.difference(DERIVED))


REFUSED = rows("""
--objective mlm --rtd.mask_rate 0.3 | --rtd.mask_rate has no effect with --objective mlm
--objective rtd --sop.weight 2 | --sop.weight has no effect
--optimizer adamw --muon_rate 2 | --muon_rate has no effect with --optimizer adamw
--hub_private_repo | --hub_private_repo has no effect with no --push_to_hub
--rtd.mask_rate much | --rtd.mask_rate must be a number, not much
--objective sop | , not sop
--rtd.temperature 1e-40 | temperature=1e-40
--preset small --model.num_hidden_groups 3 --rtd.generator_layers 4 | layers=4 is not a
--model.attention blurred | attention='blurred' is not one of softmax
--config {"report_to":null} | --report_to must be text, not None
--config {"model":{"hidden_size":null}} | --model.hidden_size must be a whole number
--model.block modern --model.type_vocab_size 3 | --model.type_vocab_size has no effect
--model.local_attention 64 | --model.local_attention has no effect
--model.attention_options.width 3 | options.width does not exist; attention softmax has none
""")


def test_an_invalid_or_unused_option_is_refused() -> None:
    for argv, word in REFUSED:
        refusals.assert_refused("UsageError", word, parse, *argv.split())


def test_a_boolean_option_needs_no_value() -> None:
    assert parse("--gradient_checkpointing", "--max_steps", 7).training.gradient_checkpointing
    assert not parse().training.gradient_checkpointing


def test_every_preset_takes_another_optimizer() -> None:
    # Regression: the preset's muon_rate was refused as an option without effect.
    for preset in PRESETS:
        assert parse("--preset", preset, "--optimizer", "adamw").training.optimizer == "adamw"


def test_an_error_of_another_rank_names_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(command_line.time, "sleep", waited.append)
    monkeypatch.setenv("RANK", "1")
    lost = RankLostError("rank 2 of 3 ended")
    lost.is_first_left = False
    for error, printed in ((UsageError("no  room"), "error: rank 1: no room\n"), (lost, "")):
        assert command_line.report(error) == error.exit_code
        assert capsys.readouterr().err == printed
    # Torchrun ends this rank meanwhile if the first one had the same error.
    assert waited == 2 * [5]


def test_a_file_with_a_removed_option_is_read_if_it_was_unused(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        "max_steps: 7\nrtd: {z_loss: 0.0, temperature_decay: 0.1, mask_rate: 0.3}\n",
        encoding="utf-8",
    )
    read = parse("--config", file)
    assert (read.training.max_steps, read.rtd.mask_rate) == (7, 0.3)
    file.write_text("rtd: {z_loss: 0.1}\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"no option --rtd\.z_loss any more"):
        parse("--config", file)
