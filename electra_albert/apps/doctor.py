"""`electra-albert doctor`: check a corpus and a configuration before training."""

from collections import Counter
from collections.abc import Sequence

from electra_albert.apps.pretrain.options import parse_pretraining
from electra_albert.contracts import UserError


def main(argv: Sequence[str]) -> int:
    """Entry point of `electra-albert doctor`; returns 1 if a check failed, else 0."""
    _, config = parse_pretraining(
        argv,
        "electra-albert doctor",
        "Check a corpus and a configuration before training, with the options of pretraining.",
    )
    from electra_albert.apps.machine import one_line_errors
    from electra_albert.apps.pretrain import budget, checks, job
    from electra_albert.training.distributed import start

    world = start(config.run.device, config.training.ddp_timeout)
    counts = Counter[str]()
    with one_line_errors(config.training, config.run.torch_compile):
        try:
            findings = checks.examine(budget.planned(job.make_job(config, world), world), world)
        except UserError:
            raise
        except (AssertionError, ValueError) as error:  # of the checks in make_job
            findings = iter([checks.Finding("fail", "weights", f"{error}; correct the objective")])
        for finding in findings:
            counts[finding.status] += 1
            if world.is_main:
                print(finding, flush=True)
    if world.is_main:
        print(f"{counts['pass']} passed, {counts['warn']} warnings, {counts['fail']} failed")
    return int(counts["fail"] > 0)
