"""The choice of options on held-out training examples (--grid)."""

import math
from collections.abc import Callable

from electra_albert.apps.finetune.job import Assignment
from electra_albert.config.finetuning import grid_points
from electra_albert.contracts import LOG, DivergedError, RunResult

FOLDER = "grid"
_HELD_OUT = 0.1  # of the training examples, the same ones for all points
# Options of a trial that differ from those of the sweep.
_OF_TRIAL = {
    "grid": None,
    "validation_split": _HELD_OUT,
    "validation_file": None,
    "max_eval_examples": None,
    "seeds": 1,
    "predict": None,
    "push_to_hub": None,
}


def choose(
    assignment: Assignment, metric: str, run_sweep: Callable[[Assignment], RunResult]
) -> Assignment | None:
    """The task with the options of the best point; None if a signal stopped a trial.

    Each point is trained with one seed, in its own folder, on the training examples that are not
    held out, and scored in `metric`; one that diverges is not chosen. The evaluation data of the
    task are not read. Raises DivergedError if all diverge.
    """
    task, config, base, folder = assignment
    scores = []
    candidates = []
    for point in grid_points(config.tuning.grid):
        name = ",".join(f"{option}={value}" for option, value in point.items())
        trial_folder = folder / FOLDER / name
        candidates.append(config.with_options(point))
        trial = candidates[-1].with_options({**_OF_TRIAL, "output_dir": str(trial_folder)})
        try:
            result = run_sweep((task, trial, base, trial_folder))
        except DivergedError as error:
            LOG.warning(f"grid of {task.name}: {name}: {error}")
            scores.append(-math.inf)
            continue
        if result.is_stopped:
            return None
        scores.append(result.metrics[metric])
        LOG.info(f"grid of {task.name}: {name}: {metric} {scores[-1]:.4f} on held-out examples")
    if max(scores) == -math.inf:
        raise DivergedError(f"grid of {task.name}: every point diverged; lower the learning rates")
    chosen = scores.index(max(scores))
    LOG.info(f"grid of {task.name}: point {chosen + 1} of {len(scores)} is chosen")
    return task, candidates[chosen], base, folder
