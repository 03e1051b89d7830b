"""Try everything with every model and write what happened: ``python -m tests.zoo [FILE] [--only NAME ...]``."""

import argparse
import platform
import sys
from collections.abc import Mapping
from pathlib import Path

import torch
import transformers
from tests.zoo import hub, wild
from tests.zoo.checks import ABILITIES, METHOD, TOLERANCE, Outcome, outcome
from tests.zoo.hub import Entry

Results = Mapping[str, Mapping[str, Outcome]]  # by model, then by ability


def main() -> int:
    """Exit code 1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.zoo", description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, help="where to write the table (default: print it)")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="try these models only")
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    public, own = hub.entries(), wild.entries()
    chosen = [one for one in public + own if not options.only or one.name in options.only]
    if not chosen:
        parser.error(f"no such model; there are {', '.join(one.name for one in public + own)}")
    results = {one.name: _try(one) for one in chosen}
    page = _page(results, {one.name for one in public})
    if options.file:
        options.file.write_text(page)
    else:
        print(page)
    wrong = [(name, ability) for name, row in results.items() for ability in row if row[ability].word == "wrong"]
    for name, ability in wrong:
        print(f"wrong: {name}, {ability}: {results[name][ability].detail}", file=sys.stderr)
    return 1 if wrong else 0


def _try(entry: Entry) -> dict[str, Outcome]:
    results = {ability: outcome(entry, ability) for ability in ABILITIES}
    print(f"{entry.name}: {', '.join(f'{a} {one.word}' for a, one in results.items())}", file=sys.stderr, flush=True)
    return results


def _page(results: Results, public: set[str]) -> str:
    hub_rows = {name: row for name, row in results.items() if name in public}
    wild_rows = {name: row for name, row in results.items() if name not in public}
    counts = {word: sum(o.word == word for row in results.values() for o in row.values()) for word in WORDS}
    return "\n".join(
        [
            "# Models that were tried",
            "",
            "Written by `make zoo` with "
            f"torch {torch.__version__}, transformers {transformers.__version__}, Python {platform.python_version()}.",
            "",
            f"{len(results)} architectures, {len(ABILITIES)} abilities each: "
            + ", ".join(f"{count} {word}" for word, count in counts.items())
            + ".",
            "",
            *EXPLANATION,
            "",
            "## Built by transformers",
            "",
            *_table(hub_rows),
            "",
            "## Written as in the wild",
            "",
            *_table(wild_rows),
            "",
            *_refusals(results),
        ]
    )


WORDS = ("exact", "refused", "wrong")
EXPLANATION = [
    "Models have tiny sizes and random weights, computed in float64; nothing is downloaded. The method is "
    f"`{METHOD!r}`.",
    "",
    "| ability | what must hold |",
    "|---|---|",
    "| masked | after two rewirings the number of weights is exact, weights outside the masks are zero, `to_dense` "
    "computes the same bits, and every parameter of two or more dimensions that enters a matrix product is sparse or "
    "named in `left_out`. Shown: density of the sparse layers / of all parameters |",
    "| packed | the same topology as masked after two rewirings, and the same weights and outputs within "
    f"{TOLERANCE:g}. Shown: how many layers are packed; the others stay masked |",
    f"| pack | `rewire.pack(model, densest=1.0)` computes the same within {TOLERANCE:g} |",
    f"| shrink | `rewire.shrink` computes the same within {TOLERANCE:g}. Shown: parameters before and after |",
    "| save and load | a sparse file loaded into a plain model computes the same bits; loaded packed, it has the same "
    "topology |",
    "| resume | a training that was stopped and continued has the same bits, in both stores |",
    "",
    "*refused* is an error that names the layer or the model; the sentences are below.",
]


def _table(rows: Results) -> list[str]:
    lines = [f"| model | {' | '.join(ABILITIES)} |", "|---" * (len(ABILITIES) + 1) + "|"]
    for name, row in rows.items():
        cells = [one.detail if one.word == "exact" and one.detail else one.word for one in row.values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _refusals(results: Results) -> list[str]:
    lines = [
        f"- {name}, {ability}: {one.detail}"
        for name, row in results.items()
        for ability, one in row.items()
        if one.word != "exact"
    ]
    return ["## Refused or wrong", "", *lines, ""] if lines else []


if __name__ == "__main__":
    sys.exit(main())
