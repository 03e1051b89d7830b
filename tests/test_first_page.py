"""The first page of the benchmarks shows what was measured: the table and the charts are those of the stored lines."""

import itertools
import re

from benchmarks import chart, end_to_end, first_page

MEASURED = {
    "ViT": {"network": "ViT", "speedups": [2.0, 4.0, 4.04]},
    "MLP": {"network": "MLP", "speedups": [4.0, 8.0, 16.0]},
}


def test_the_documents_are_those_of_the_measurements():
    for path, content in first_page.documents(first_page.PAGE.read_text(), first_page.read(first_page.RESULTS)).items():
        assert path.read_text() == content, "write it again: python -m benchmarks.first_page --write"


def test_the_whole_trainings_are_those_of_the_measurements():
    lines = end_to_end.read(end_to_end.RESULTS)
    assert {(line["network"], line["arm"]) for line in lines} == set(
        itertools.product(end_to_end.NETWORKS, end_to_end.ARMS)
    )
    assert end_to_end.table(lines) in first_page.PAGE.read_text()


def test_seconds_per_epoch_leave_the_evaluation_out():
    assert end_to_end.seconds_per_epoch({"seconds": [10.0, 30.0, 20.0, 99.0]}) == 20.0
    assert end_to_end.seconds_per_epoch({"seconds": [7.0]}) == 7.0


def test_the_table_has_the_fastest_network_first():
    lines = first_page.table(MEASURED).splitlines()
    assert lines[0] == "| training | 90 % | 97 % | 99 % |"
    assert lines[2] == "| **MLP** (784-4096-4096-10, batch 128) | 4.0 | 8.0 | 16.0 |"
    assert lines[3].endswith("| 2.0 | 4.0 | 4.0 |")


def test_only_the_marked_part_of_the_page_is_replaced():
    page = f"before\n{first_page.BEGIN}\nold\n{first_page.END}\nafter\n"
    text = first_page.documents(page, MEASURED)[first_page.PAGE]
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert "**MLP**" in text


def test_twice_the_speed_is_the_same_distance_everywhere():
    top = 16.0
    heights = [chart.height(value, top) for value in (1.0, 2.0, 4.0, 8.0, 16.0)]
    assert heights[0] == chart.HEIGHT - chart.BOTTOM
    assert heights[-1] == chart.TOP
    assert {round(below - above, 6) for below, above in itertools.pairwise(heights)} == {(heights[0] - heights[-1]) / 4}


def test_every_network_has_a_line_and_names_do_not_overlap():
    networks = {f"network {i}": [1.5, 2.0, 2.0 + i / 100] for i in range(9, 0, -1)}
    text = chart.draw(["90 %", "97 %", "99 %"], networks, chart.LOOKS["light"])
    assert text.count("<polyline") == len(networks)
    places = [float(y) for y in re.findall(r'<text x="464" y="([\d.]+)"', text)]
    assert len(places) == len(networks)
    assert all(below - above >= chart.LEAST - 0.1 for above, below in itertools.pairwise(places))
    assert max(places) <= chart.HEIGHT - chart.BOTTOM + 5
