"""The examples for clusters, as far as one machine can run them: Ray for real, Slurm by a stand-in,
others as files.
"""

import os
import runpy
import subprocess
from pathlib import Path

import dill
import pytest
import yaml

from electra_albert.apps import prepare as prepare_app
from electra_albert.apps.pretrain import main as pretrain
from tests.apps.tiny_run import ROOT, english, options, rows, succeed
from tests.corpus.reading import stored_bytes, write

EXAMPLES = ROOT / "examples"
# A stand-in for Slurm that records jobs.
PROGRAMS = {
    "sbatch": '#!/bin/bash\necho "$@" >> calls\necho Submitted batch job 7\n',
    "scontrol": "#!/bin/bash\necho here\n",
}
PREPARE = "--corpus tales.yaml --vocab_size 300 --max_seq_length 32 --prepared_dir"


def test_a_corpus_is_prepared_by_slurm_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_NODELIST", "here")
    for name, program in PROGRAMS.items():
        write(tmp_path, program, name).chmod(0o755)
    write(tmp_path, "- {corpus: a.txt}\n- {corpus: b.txt}\n", "tales.yaml")
    for seed, name in enumerate("ab"):
        write(tmp_path, english(150, seed=seed), f"{name}.txt")
    main = runpy.run_path(str(EXAMPLES / "slurm" / "prepare.py"))["main"]
    main(2, "cpu", [*PREPARE.split(), "jobs"])
    # Each stage after the one before.
    assert Path("calls").read_text().count("--dependency=afterok:7") == 2
    for stage, tasks in (("write", 2), ("split", 2), ("merge", 1)):
        folder = Path("jobs", "slurm", stage)
        assert f"--array=0-{tasks - 1}" in (folder / "launch_script.slurm").read_text()
        for task in range(tasks):
            monkeypatch.setenv("SLURM_ARRAY_TASK_ID", str(task))
            dill.loads((folder / "executor.pik").read_bytes()).run()
    prepare_app.main([*PREPARE.split(), "alone"])
    made, alone = (next(Path(name).glob("tales-*/store")) for name in ("jobs", "alone"))
    assert stored_bytes(made) == stored_bytes(alone) != {}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_ray_train_gives_the_losses_of_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    monkeypatch.syspath_prepend(str(EXAMPLES))
    from ray_train import fit

    corpus = write(tmp_path, english(150), "tales.txt")
    shared = ("--max_steps", 6, "--logging_steps", 1, "--eval_steps", 6, "--report_to", "none")
    prepared, halves = tmp_path / "prepared", ("--per_device_train_batch_size", 4)
    succeed(pretrain.main, *options(corpus, prepared, tmp_path / "alone", *shared))
    two = options(corpus, prepared, tmp_path / "two", *shared, *halves)
    paths = f"{EXAMPLES}:{os.environ['PYTHONPATH']}"
    env = {"env_vars": {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}}
    quiet = {"include_dashboard": False, "log_to_driver": False}
    ray.init(num_cpus=3, _node_ip_address="127.0.0.1", runtime_env=env, **quiet)
    try:
        fit(2, two, str(tmp_path / "ray"))
    finally:
        ray.shutdown()
    expected, found = (
        [row["loss"] for row in rows(tmp_path / name) if "loss" in row] for name in ("alone", "two")
    )
    assert len(expected) == 6
    assert found == pytest.approx(expected, rel=1e-5)


def test_job_files_call_the_script_with_options_that_exist(tmp_path: Path) -> None:
    sky = yaml.safe_load((EXAMPLES / "sky.yaml").read_text())["run"]
    pod = yaml.safe_load((EXAMPLES / "kubernetes.yaml").read_text())["spec"]["template"]["spec"]
    container = pod["containers"][0]
    corpus = write(tmp_path, english(50), "tales.txt")
    of_sky = sky.replace("\\\n", " ").replace('"', "").split()
    paths = {"--corpus": corpus, "--prepared_dir": tmp_path, "--output_dir": tmp_path / "r"}
    # Regression: the image has the package, and not the scripts of the checkout.
    assert container["command"] == ["electra-albert", "pretrain"]
    for argv in (of_sky[of_sky.index("Pretraining.py") + 1 :], container["args"]):
        for name, path in paths.items():
            argv[argv.index(name) + 1] = str(path)
        pretrain.parse_pretraining(argv)
    script = (EXAMPLES / "slurm" / "pretrain.sbatch").read_text()
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0
