"""What the README says of the results is what the results page says."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[3] / "docs"
NUMBER = r"([+-]?\d+\.\d\d)"
VGG = "VGG16 x0.25, 96 %"
NETWORKS = {
    "VGG16": "VGG16 x0.25",
    "VGG16 at full width": "VGG16",
    "ResNet-18": "ResNet-18 (stem stride 2) x0.25",
    "MobileNetV2": "MobileNetV2 (stem stride 2) x0.25",
}
IN_SENTENCES = {  # by the words before it: how the row of the results begins that a number is from
    "a tenth of its weights,": f"share of the gap closed by GGR, {VGG} ",
    "dense and narrow by": f"GGR minus dense x0.0469, {VGG}, ERK start ",
    "than the mix by": "share by gradient 0 ",
    "that is worth": "ERK start ",
}


def first_page_and_results():
    """The section of the README with its lines joined, its lines, and the lines of the results page."""
    section = (DOCS.parent / "README.md").read_text().partition("## Does it reproduce?")[2].partition("\n## ")[0]
    return " ".join(section.split()), section.splitlines(), (DOCS / "results.md").read_text().splitlines()


def test_the_numbers_of_the_first_page_are_those_of_the_results():
    section, _, lines = first_page_and_results()
    for words, begin in IN_SENTENCES.items():
        (row,) = (line for line in lines if line.startswith(f"| {begin}"))
        measured = re.findall(rf"\| {NUMBER} \| {NUMBER} to {NUMBER} \|", row)[-1]  # CIFAR-100 is last
        shown = re.findall(rf"{re.escape(words)} {NUMBER}[^()]{{0,20}} \({NUMBER} to {NUMBER}\)", section)
        assert shown == [tuple(number.removeprefix("+") for number in measured)], words
    sentences = section.partition("| network")[0] + section.rpartition(" |")[2]
    assert len(re.findall(rf"{NUMBER}\b", sentences)) == 3 * len(IN_SENTENCES)
    costs = ("| VGG16 x0.25 | GGR | 96 % | ERK | packed |", "| VGG16 x0.0469 | Dense | · | · |")
    sparse, dense = (float(next(row for row in lines if row.startswith(cost)).split(" | ")[7]) for cost in costs)
    assert f"at {sparse / dense:.0f} times the multiply-adds" in section


def test_the_table_of_the_first_page_has_the_rows_of_the_results():
    _, table, lines = first_page_and_results()
    rows = [line.strip("| ").split(" | ") for line in table if re.match(r"\| [A-Z]", line)]
    assert len(rows) >= 6
    for where, start, *cells, seeds in rows:
        network, sparsity = where.split(", ")
        found = []
        for rival, cell in zip(("DSR", "RigL", "SET"), cells, strict=True):
            name = f"GGR minus {rival}, {NETWORKS[network]}, {sparsity}, {start} start [points]"
            (row,) = (line for line in lines if line.removeprefix("| ").removeprefix("detail: ").startswith(name))
            mean, interval, n = row.strip("| ").split(" | ")[1:]
            assert cell == f"{mean} ({interval})", name
            found.append(n)
        assert seeds == " to ".join(sorted(set(found))), where


def test_the_verdicts_of_the_first_page_are_those_of_the_results():
    section, _, lines = first_page_and_results()
    assert lines[2].partition(". They are")[0] in section
    assert ("outstanding" in section) == ("so far" in lines[2])
