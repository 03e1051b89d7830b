"""Do both stores reach the same accuracy? Paired runs on the embedded digits, many seeds; resumable.

``python -m benchmarks.store_accuracy --seeds 400`` appends a line a run to ``docs/results/stores.jsonl`` and prints the
mean paired difference, packed minus masked, with its 95 % interval. It takes about three hours on one core.
"""

from dataclasses import replace
from pathlib import Path

from benchmarks.paired_runs import BASE, Key, PairedRuns, options
from rewire.lab.report.statistics import paired_difference

METHODS, STORES = ("rigl", "ggr"), ("masked", "packed")
RESULTS = Path("docs/results/stores.jsonl")


def main() -> None:
    given = options(__doc__, 400, RESULTS)
    study = PairedRuns(given.out, ("method", "store"), ("accuracy", "loss"))
    keys: list[Key] = [(method, store) for method in METHODS for store in STORES]
    study.measure({key: replace(BASE, method=key[0], store=key[1]) for key in keys}, given.seeds)
    for method in METHODS:
        for metric, scale in (("accuracy", 100.0), ("loss", 1.0)):
            packed, masked = (study.by_seed((method, store), metric) for store in ("packed", "masked"))
            apart = paired_difference(packed, masked)
            assert apart is not None
            print(
                f"{method:5} {metric:8} packed - masked: {scale * apart.mean:+.3f} +- {scale * apart.half_width:.3f} "
                f"({apart.n} pairs)"
            )


if __name__ == "__main__":
    main()
