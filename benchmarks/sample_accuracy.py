"""What does ranking a sample of the gradients cost in accuracy? GGR on the embedded digits, paired by seed; resumable.

``python -m benchmarks.sample_accuracy --seeds 20`` appends a line a run to ``docs/results/samples.jsonl`` and prints
the mean accuracy of each, and its mean paired difference from the exact ranking with its 95 % interval.
"""

from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev

import rewire
from benchmarks.paired_runs import BASE, PairedRuns, options
from rewire.core import Method
from rewire.lab.report.statistics import paired_difference
from rewire.parts.start import AnyStart

RESULTS = Path("docs/results/samples.jsonl")


def as_many(*, density: float, every: int, until: int, fraction: float = 0.1, start: AnyStart = "erk") -> Method:
    """As many candidates as a layer has weights."""
    return rewire.ggr(density=density, every=every, until=until, fraction=fraction, start=start, sample=1.0)


def a_quarter(*, density: float, every: int, until: int, fraction: float = 0.1, start: AnyStart = "erk") -> Method:
    """A quarter as many."""
    return rewire.ggr(density=density, every=every, until=until, fraction=fraction, start=start, sample=0.25)


METHODS = {"exact": "ggr", "sample=1": f"{__file__}:as_many", "sample=0.25": f"{__file__}:a_quarter"}


def main() -> None:
    given = options(__doc__, 20, RESULTS)
    study = PairedRuns(given.out, ("method",), ("accuracy",))
    study.measure({(label,): replace(BASE, method=method) for label, method in METHODS.items()}, given.seeds)
    exact = study.by_seed(("exact",), "accuracy")
    for label in METHODS:
        found = study.by_seed((label,), "accuracy")
        percent = [100 * accuracy for accuracy in found.values()]
        apart = paired_difference(found, exact)
        assert apart is not None
        print(
            f"{label:12} {fmean(percent):.2f} +- {stdev(percent):.2f} %, minus exact: {100 * apart.mean:+.2f} +- "
            f"{100 * apart.half_width:.2f} ({apart.n} seeds)"
        )


if __name__ == "__main__":
    main()
