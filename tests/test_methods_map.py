"""The map of the field in docs/methods/README.md says of every method what it is composed of and what was measured."""

import re
from pathlib import Path

import pytest

import rewire

FOLDER = Path(__file__).parents[1] / "docs" / "methods"
COMMON = "·"
HEADINGS = ("The map: what each method answers", "The map: where it shines, and what it costs")
ANSWERS = {  # the columns of the map, by part
    "start": "start",
    "density": "density",
    "when, how much": "schedule",
    "drop": "drop",
    "shares of layers": "allocate",
    "grow": "grow",
    "value": "birth",
    "structure": "constraint",
}
SETTINGS = {"density": 0.1, "every": 100, "until": 1000, "fraction": 0.1}


def rows_of(text):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


def the_map():
    """The rows of both tables of the map, joined by the name of the method."""
    text = (FOLDER / "README.md").read_text()
    answers, evidence = (table_below(heading, text) for heading in HEADINGS)
    assert list(answers) == list(evidence), "both tables have the same order"
    return {name: row | evidence[name] for name, row in answers.items()}


def table_below(heading, text):
    """The first table below a heading: its rows, by the name of the method."""
    section = text.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    head, _, *rows = rows_of(section)
    named = [dict(zip(head, row, strict=True)) for row in rows]
    return {re.fullmatch(r"\[.+\]\((\w+)\.md\)", row["method"])[1]: row for row in named}


def measured(network):
    """Points above a static network, as docs/methods/on-digits.md has them: at 97 and 99 %, by label."""
    sections = (FOLDER / "on-digits.md").read_text().split("\n## ")
    (section,) = (one for one in sections if one.startswith(network))
    return {row[0]: row[2:] for row in rows_of(section) if row[1] == COMMON}


def rounded(cell):
    points, star = re.match(r"([+-][\d.]+) ± [\d.]+(\*?)$", cell).groups()
    return f"{float(points):+.1f}{star}"


MAP = the_map()


def test_every_method_has_a_row_and_a_card():
    assert set(MAP) == set(rewire.METHODS)
    assert all((FOLDER / f"{name}.md").is_file() for name in MAP)


def test_rows_are_sorted_by_question_and_year():
    questions = [row["it is new in"] for row in MAP.values()]
    assert len(set(questions)) == sum(one != other for one, other in zip(questions, [None, *questions], strict=False))
    firsts = [
        next(at for at, question in enumerate(["none", *ANSWERS]) if question.startswith(one.strip("*")))
        for one in questions
    ]
    assert firsts == sorted(firsts), "the questions are in the order of the columns"
    for question in set(questions):
        years = [row["year"] for row in MAP.values() if row["it is new in"] == question]
        assert years == sorted(years)


@pytest.mark.parametrize("name", list(MAP))
def test_a_dot_is_the_answer_of_set(name):
    method, common = rewire.METHODS[name](**SETTINGS), rewire.set_(**SETTINGS)
    for column, part in ANSWERS.items():
        assert (MAP[name][column] == COMMON) == (getattr(method, part) == getattr(common, part)), column


@pytest.mark.parametrize("name", list(MAP))
def test_what_was_measured_is_that_of_the_digits(name):
    label = rewire.METHODS[name].plain_look.label
    assert MAP[name]["method"] == f"[{label}]({name}.md)"
    linear, convolutional = measured("A network of linear layers"), measured("A convolutional network")
    cells = [linear[label][0], *convolutional.get(label, [])] if name != "static" else []
    assert MAP[name]["here: points above static"] == (", ".join(map(rounded, cells)) or "0")


@pytest.mark.parametrize("name", list(MAP))
def test_what_a_rewiring_reads(name):
    signals = rewire.METHODS[name](**SETTINGS).ranked_signals
    cell = MAP[name]["per rewiring"]
    assert bool(signals) == any(word in cell for word in ("gradient", "momentum"))
