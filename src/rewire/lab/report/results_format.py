"""How the results page writes numbers, intervals and tables."""

from collections.abc import Iterable, Sequence

from rewire.lab.report.cells import EMPTY
from rewire.lab.report.statistics import Interval

OUTSTANDING = "Undecided: runs outstanding.\n"


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]], text_columns: int) -> list[str]:
    """The lines of a table whose first columns are text and whose others are numbers."""
    rule = ["---"] * text_columns + ["--:"] * (len(heads) - text_columns)
    return ["| " + " | ".join(row) + " |" for row in (heads, rule, *rows)]


def number(value: float, *, signed: bool = True) -> str:
    """Two decimals; differences have a sign."""
    return f"{value:+z.2f}" if signed else f"{value:z.2f}"


def range_text(interval: Interval, *, signed: bool = True) -> str:
    """The bounds of an interval; a dot where it has none, or where all seeds gave the same."""
    if not interval.has_width:
        return EMPTY
    return f"{number(interval.low, signed=signed)} to {number(interval.high, signed=signed)}"


def range_and_seeds(interval: Interval, *, signed: bool = True) -> str:
    """The interval and the number of seeds in words."""
    return f"{range_text(interval, signed=signed)}; n = {interval.n}" if interval.n > 1 else "one seed, no interval"


def columns_of(interval: Interval, mark: str = "", *, signed: bool = True) -> list[str]:
    """Mean, interval and n as three cells of a table."""
    return [number(interval.mean, signed=signed) + mark, range_text(interval, signed=signed), str(interval.n)]
