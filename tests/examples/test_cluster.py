"""The examples for clusters, as far as one machine can run them: Ray for real, Slurm by a stand-in,
others as files.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from electra_albert.apps.pretrain import main as pretrain
from electra_albert.config.pretraining import CorpusConfig
from electra_albert.corpus.prepare import prepare
from tests.apps.tiny_run import ROOT, english, environment, options, rows, succeed
from tests.corpus.reading import stored_bytes, write

EXAMPLES = ROOT / "examples"
# A stand-in for Slurm: `sbatch` runs the tasks of a job array one after the other before it
# returns.
SBATCH = """#!/bin/bash
for script in "$@"; do :; done
last=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\).*/\\1/p' "$script")
for task in $(seq 0 "${last:-0}"); do
    SLURM_ARRAY_TASK_ID=$task SLURM_NODELIST=here SLURM_JOB_ID=7 \\
      bash "$script" >> "$SLURM_LOG" 2>&1 \\
      || exit 1
done
echo "$@" >> "$SLURM_LOG.calls"
echo Submitted batch job 7
"""
PROGRAMS = {
    "sbatch": SBATCH,
    "srun": '#!/bin/bash\nshift 3\nexec "$@"\n',
    "scontrol": "#!/bin/bash\necho here\n",
}


def test_a_corpus_is_prepared_by_slurm_jobs(tmp_path: Path) -> None:
    for name, text in PROGRAMS.items():
        (program := write(tmp_path, text, name)).chmod(0o755)
    write(tmp_path, "- {corpus: a.txt}\n- {corpus: b.txt}\n", "tales.yaml")
    for seed, name in enumerate("ab"):
        write(tmp_path, english(150, seed=seed), f"{name}.txt")
    argv = [
        "--corpus",
        "tales.yaml",
        "--vocab_size",
        "300",
        "--max_seq_length",
        "32",
        "--prepared_dir",
    ]
    command = [sys.executable, str(EXAMPLES / "slurm" / "prepare.py"), "2", "cpu", *argv, "jobs"]
    env = environment() | {
        "PATH": f"{program.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    }
    env |= {"SLURM_LOG": str(tmp_path / "log")}
    ended = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240
    )
    assert ended.returncode == 0, ended.stderr[-2000:] + (tmp_path / "log").read_text()[-2000:]
    assert (tmp_path / "log.calls").read_text().count("--dependency=afterok:7") >= 2
    config = CorpusConfig(
        str(tmp_path / "tales.yaml"),
        vocab_size=300,
        max_seq_length=32,
        prepared_dir=str(tmp_path / "p"),
    )
    store = prepare(config, 42).store.folder
    (made,) = (tmp_path / "jobs").glob("tales-*/store")
    assert stored_bytes(made) == stored_bytes(store) != {}


@pytest.mark.filterwarnings("ignore")
def test_ray_train_gives_the_losses_of_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    monkeypatch.syspath_prepend(str(EXAMPLES))
    from ray_train import fit

    corpus = write(tmp_path, english(150), "tales.txt")
    shared = ("--max_steps", 6, "--logging_steps", 1, "--eval_steps", 6, "--report_to", "none")
    alone = options(corpus, tmp_path / "prepared", tmp_path / "alone", *shared)
    succeed(pretrain.main, *alone)
    two = options(
        corpus, tmp_path / "prepared", tmp_path / "two", *shared, "--per_device_train_batch_size", 4
    )
    paths = f"{EXAMPLES}:{os.environ['PYTHONPATH']}"
    ray.init(
        num_cpus=3,
        _node_ip_address="127.0.0.1",
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}},
    )
    try:
        fit(2, two, str(tmp_path / "ray"))
    finally:
        ray.shutdown()
    losses = [
        [row["loss"] for row in rows(tmp_path / name) if "loss" in row] for name in ("alone", "two")
    ]
    assert len(losses[0]) == 6
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_job_files_call_the_script_with_options_that_exist(tmp_path: Path) -> None:
    sky = yaml.safe_load((EXAMPLES / "sky.yaml").read_text())["run"]
    pod = yaml.safe_load((EXAMPLES / "kubernetes.yaml").read_text())["spec"]["template"]["spec"]
    container = pod["containers"][0]
    corpus = write(tmp_path, english(50), "tales.txt")
    for words in (
        sky.replace("\\\n", " ").replace('"', "").split(),
        [*container["command"], *container["args"]],
    ):
        argv = words[words.index("Pretraining.py") + 1 :]
        for name, value in {
            "--corpus": corpus,
            "--prepared_dir": tmp_path,
            "--output_dir": tmp_path / "r",
        }.items():
            argv[argv.index(name) + 1] = str(value)
        pretrain.parse_pretraining(argv)
    script = (EXAMPLES / "slurm" / "pretrain.sbatch").read_text()
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0
