"""``python -m benchmarks``: measure everything, print a table, write ``benchmarks/results/latest.json``."""

import json
from pathlib import Path

import torch

from benchmarks import im2col, ordinary_step, packed, packed_rewiring, peer, rewiring, sequences, shrink
from rewire.lab.environment import environment
from rewire.lab.results import write_json


def main() -> None:
    torch.manual_seed(0)
    about, rows = environment("cpu"), []
    print(json.dumps(about), flush=True)
    for module in (rewiring, ordinary_step, shrink, im2col, packed, packed_rewiring, sequences, peer):
        for row in module.rows():
            verdict = {True: "met", False: "NOT MET", None: ""}[row["met"]]
            print(f"{row['what']:75} {row['ratio']:8.3f}   {row['target']!s:16} {verdict}", flush=True)
            rows.append(row)
    path = Path(__file__).parent / "results" / "latest.json"
    write_json(path, {"environment": about, "rows": rows})
    print(f"written to {path}")


if __name__ == "__main__":
    main()
