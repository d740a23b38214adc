"""The choice of options on held-out training examples (--grid)."""

from collections.abc import Callable

from electra_albert.apps.finetune.job import Assignment
from electra_albert.config.finetuning import grid_points
from electra_albert.contracts import LOG, RunResult

FOLDER = "grid"
_HELD_OUT = 0.1  # of the training examples, the same ones for all points
# Options of a trial that differ from those of the sweep.
_OF_TRIAL = {
    "grid": None,
    "validation_split": _HELD_OUT,
    "validation_file": None,
    "seeds": 1,
    "predict": None,
    "push_to_hub": None,
}


def choose(
    assignment: Assignment, run_sweep: Callable[[Assignment], RunResult]
) -> Assignment | None:
    """The task with the options of the best point; None if a signal stopped a trial.

    Each point is trained with one seed, in its own folder, on the training examples that are not
    held out. The evaluation data of the task are not read.
    """
    task, config, base, folder = assignment
    metric = config.tuning.metric_for_best_model or task.main
    points = grid_points(config.tuning.grid)
    candidates = [config.with_options(point) for point in points]  # refuses values out of range
    scores: dict[str, float] = {}
    for point, candidate in zip(points, candidates, strict=True):
        name = ",".join(f"{option}={value:g}" for option, value in point.items())
        trial_folder = folder / FOLDER / name
        trial = candidate.with_options({**_OF_TRIAL, "output_dir": str(trial_folder)})
        result = run_sweep((task, trial, base, trial_folder))
        if result.is_stopped:
            return None
        scores[name] = result.metrics[metric]
        LOG.info(f"grid of {task.name}: {name}: {metric} {scores[name]:.4f} on held-out examples")
    best = max(scores, key=lambda name: scores[name])
    LOG.info(f"grid of {task.name}: {best} is chosen")
    return task, candidates[list(scores).index(best)], base, folder
