"""The chart of speed-ups shows the numbers of the table."""

from benchmarks import chart


def test_the_chart_in_the_documents_is_that_of_the_table():
    for path, content in chart.charts().items():
        assert path.read_text() == content, "draw it again: python -m benchmarks.chart"


def test_the_numbers_are_those_of_two_threads():
    train, infer = "| train A, ERK, batch 128 | 4.9, 5.0 / 5 | 19.7, 22.4 / 26 |", "| infer A | 1 | 2 |"
    assert chart.speedups(f"| | 90 % | 99 % |\n|---|--:|--:|\n{train}\n{infer}\n") == (
        ["90 %", "99 %"],
        {"A, ERK": [4.9, 19.7]},
    )


def test_the_longest_bar_fills_the_chart():
    text = chart.draw(["90 %"], {"A, ERK": [4.0], "B, ERK": [2.0]}, chart.Look("black", "grey", ("blue",)))
    whole = chart.WIDTH - chart.LEFT - chart.RIGHT
    assert f'width="{whole:.1f}"' in text
    assert f'width="{whole / 2:.1f}"' in text
