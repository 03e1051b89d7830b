"""Tables of any grid, worked out by hand from invented accuracies."""

from dataclasses import replace

import pytest
from tests.lab.made_up import record

from rewire.lab.report.comparison import Arrangement, comparison_tables, differences
from rewire.lab.report.render import to_markdown
from rewire.lab.report.report import report_tables
from rewire.lab.run import Run

BASE = Run(data="digits", model="mlp")


def made(values):
    """Records from accuracies in percent by run; None is not finished."""
    return [record(run, None if value is None else value / 100) for run, value in values.items()]


def seeds(run, *values):
    return {replace(run, seed=seed): value for seed, value in enumerate(values)}


def test_means_and_differences_with_intervals():
    values = seeds(BASE, 70, 72, 77) | seeds(replace(BASE, method="rigl"), 69, 71, 75)
    means, less = comparison_tables(made(values), Arrangement(baseline="ggr"))
    assert (means.name, less.name) == ("grid", "differences")
    rows = {heads: cells[0] for heads, cells in means.rows}
    assert [heads for heads, _ in means.rows] == [("RigL",), ("GGR",)]
    assert (rows["GGR",].text, rows["GGR",].spread) == ("73.00", "8.96")  # 4.302653 * sqrt(13 / 3)
    assert rows["GGR",].std == pytest.approx(13**0.5)  # of the sample, as in every file of numbers
    ((heads, (cell,)),) = less.rows
    assert heads == ("RigL",)
    assert (cell.text, cell.spread) == ("-1.33", "1.43")  # -1, -1, -2
    assert "-2.77 to +0.10, n = 3" in cell.note
    assert less.title == "Difference from GGR"


def test_rows_and_columns_are_chosen_and_what_is_left_over_makes_tables():
    values = {}
    for lr in (0.1, 0.2):
        for width in (0.5, 1.0):
            for method in ("set", "ggr"):
                values |= seeds(replace(BASE, lr=lr, width=width, method=method), 50 + 100 * lr + width)
    tables = comparison_tables(made(values), Arrangement.parse("lr", "method", None))
    means = [table for table in tables if table.name.startswith("grid")]
    assert [table.title for table in means] == ["Accuracy, width 0.5", "Accuracy, width 1.0"]
    assert means[0].columns == (("", "GGR"), ("", "SET"))
    assert {heads: [cell.text for cell in cells] for heads, cells in means[1].rows} == {
        ("lr 0.1",): ["61.00", "61.00"],
        ("lr 0.2",): ["71.00", "71.00"],
    }


def test_failed_and_unfinished_runs_are_marked():
    values = seeds(BASE, 70, 5, 72) | seeds(replace(BASE, method="set"), 3, 4)
    values |= seeds(replace(BASE, method="dsr"), None)
    means, less = comparison_tables(made(values), Arrangement(baseline="ggr"))
    rows = {heads[0]: cells[0] for heads, cells in means.rows}
    assert (rows["GGR"].text, rows["GGR"].n, rows["GGR"].failed) == ("71.00", 2, 1)
    assert rows["SET"].text == "-"
    assert rows["DSR"].text == "·"
    assert [(cells[0].text, cells[0].failed) for _, cells in less.rows] == [("-", 2), ("·", 0)]
    assert less.caption.endswith("- failed, † failed seeds are excluded. · no finished run.")


def test_a_difference_without_failed_seeds_says_so_and_is_never_clear():
    values = seeds(BASE, 70.1, 5, 72, 71) | seeds(replace(BASE, method="set"), 60, 60.5, 62.2, 61.1)
    less = comparison_tables(made(values), Arrangement(baseline="set"))[1]
    ((_, (cell,)),) = less.rows
    assert (cell.text, cell.n, cell.failed) == ("+9.93", 3, 1)  # 10.1, 9.8, 9.9
    assert "*" not in cell.spread
    assert "†" in less.caption
    assert "†1" in to_markdown(less)


@pytest.mark.parametrize(
    ("theirs", "spread"),
    [
        ((69, 70.5, 72.1), "0.14*"),  # 1, 1, 0.9: 4.303 * 0.0577 / sqrt(3)
        ((69, 70.5), ""),  # 1, 1: two seeds that agree
        ((69, 70.4), "0.64"),  # 1, 1.1: two seeds have an interval and no star
        ((69, 70.5, 72), ""),  # all the same
    ],
)
def test_a_star_takes_three_seeds_that_differ(theirs, spread):
    values = seeds(BASE, *(70, 71.5, 73)[: len(theirs)]) | seeds(replace(BASE, method="set"), *theirs)
    ((_, (cell,)),) = comparison_tables(made(values), Arrangement(baseline="set"))[1].rows
    assert cell.spread == spread


def test_a_dense_reference_has_a_column_of_its_own():
    values = seeds(replace(BASE, method="dense"), 90) | seeds(BASE, 80) | seeds(replace(BASE, sparsity=0.9), 85)
    means = comparison_tables(made(values), Arrangement())[0]
    assert means.columns == (("", "all"), ("", "90%"), ("", "97%"))
    assert {heads[0]: [cell.text for cell in cells] for heads, cells in means.rows} == {
        "Dense": ["90.00", "·", "·"],
        "GGR": ["·", "85.00", "80.00"],
    }


def test_settings_without_an_effect_on_dense_runs_make_no_column():
    sparse = replace(BASE, every=98, store="packed")
    dense = replace(BASE, method="dense", sparsity=0.0)
    means, _ = comparison_tables(made(seeds(sparse, 70, 72) | seeds(dense, 75, 76)), Arrangement())
    assert means.columns == (("", "all"),)
    assert {heads: cells[0].text for heads, cells in means.rows} == {("Dense",): "75.50", ("GGR",): "71.00"}


def test_differences_need_several_seeds():
    values = seeds(BASE, 70) | seeds(replace(BASE, method="set"), 60)
    assert differences(made(values)) == []
    values = seeds(BASE, 70, 71) | seeds(replace(BASE, method="set"), 60, 61)
    (table,) = differences(made(values))
    assert table.title == "Difference from SET"


def test_what_cannot_be_arranged_is_refused():
    with pytest.raises(ValueError, match="unknown setting 'metod'. Did you mean 'method'"):
        Arrangement.parse("metod", None, None)
    with pytest.raises(ValueError, match="lr cannot be in --rows and in --columns"):
        Arrangement.parse("lr", "method,lr", None)
    with pytest.raises(ValueError, match="unknown baseline 'set'. Known: ggr"):
        comparison_tables(made(seeds(BASE, 70, 71)), Arrangement(baseline="set"))


OWN = """import rewire

def {name}(*, density, every, until):
    return rewire.ggr(density=density, every=every, until=until)
"""


def rows_of_report(values):
    tables = report_tables(made(values), Arrangement.parse("method", "sparsity", "ggr"))
    found = {table.name: {heads[-1]: cells[0].text for heads, cells in table.rows} for table in tables}
    assert found["table1-digits"] == found["grid"]
    return found["grid"]


def test_functions_of_one_name_in_two_files_share_no_cell(tmp_path):
    (tmp_path / "a.py").write_text(OWN.format(name="mine"))
    (tmp_path / "b.py").write_text(OWN.format(name="mine") + "# another\n")
    first, second = (Run(model="mlp", method=f"{tmp_path}/{file}.py:mine") for file in "ab")
    values = seeds(BASE, 80, 82) | seeds(first, 90, 92) | seeds(second, 50, 52)
    assert rows_of_report(values) == {"GGR": "81.00", "a.mine": "91.00", "b.mine": "51.00"}


def test_code_that_changed_between_runs_shares_no_cell(tmp_path):
    values = seeds(BASE, 80, 82)
    expected = {"GGR": "81.00"}
    for text, mean in (("", 91), ("# changed\n", 51)):
        (tmp_path / "a.py").write_text(OWN.format(name="mine") + text)
        run = Run(model="mlp", method=f"{tmp_path}/a.py:mine")
        values |= seeds(run, mean - 1, mean + 1)
        expected[f"mine-{run.code[0].digest[:6]}"] = f"{mean}.00"
    assert rows_of_report(values) == expected


def test_a_function_called_like_a_method_of_the_library_has_a_row_of_its_own(tmp_path):
    (tmp_path / "a.py").write_text(OWN.format(name="GGR"))
    values = seeds(BASE, 80, 82) | seeds(Run(model="mlp", method=f"{tmp_path}/a.py:GGR"), 50, 52)
    assert rows_of_report(values) == {"GGR": "81.00", "a.GGR": "51.00"}


def test_differences_leave_out_what_cannot_be_compared():
    """A dense run has no sparsity, so that no run of the reference stands beside it."""
    values = seeds(BASE, 80, 82) | seeds(replace(BASE, sparsity=0.9), 81, 83)
    values |= seeds(replace(BASE, method="rigl"), 70, 72) | seeds(
        Run(model="mlp", method="dense", sparsity=0.0), 90, 92
    )
    means, less = comparison_tables(made(values), Arrangement(baseline="ggr"))
    assert [heads for heads, _ in means.rows] == [("Dense",), ("RigL",), ("GGR",)]
    assert [name for _, name in less.columns] == ["90%", "97%"]
    assert [(heads, [cell.text for cell in cells]) for heads, cells in less.rows] == [(("RigL",), ["·", "-10.00"])]
