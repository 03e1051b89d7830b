"""Figures of made-up runs: what is drawn, and that the files are the same every time."""

import re
from dataclasses import replace

import matplotlib
import numpy as np
import pytest
from PIL import Image
from tests.lab.made_up import SHAPES, masks, record, sweep, write

from rewire.lab.report import figures, hover, style
from rewire.lab.report.looks import all_looks, look_of_label
from rewire.lab.report.pictures import pictures
from rewire.lab.results import read_records
from rewire.lab.run import Run

RUN = Run(epochs=4)


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs")
    sweep(directory)
    return read_records(directory)


def one_column(records):
    return [one for one in records if (one.run.sparsity, one.run.start) == (0.97, "erk")]


def lines(axes):
    return {line.get_label(): line for line in axes.get_lines()}


def test_layer_density_shows_the_mean_of_the_seeds_for_each_method(records):
    figure = figures.layer_density(one_column(records))
    above, below = figure.axes
    assert list(lines(above)) == ["SET", "RigL", "DSR", "GGR"]
    seeds = [one.result["layers"] for one in one_column(records) if one.run.method == "ggr"]
    counts = [np.mean([layer["nnz"] for layer in same]) for same in zip(*seeds, strict=True)]
    sizes = [np.prod(shape) for shape in SHAPES.values()]
    assert lines(below)["GGR"].get_ydata() == pytest.approx(counts)
    assert lines(above)["GGR"].get_ydata() == pytest.approx(np.array(counts) / sizes)
    assert [label.get_text() for label in below.get_xticklabels()] == list(SHAPES)
    assert [axes.get_ylabel() for axes in (above, below)] == ["density", "active weights"]
    assert "%" in above.yaxis.get_major_formatter()(0.1, 0)


def test_methods_that_begin_differently_have_starts_of_their_own():
    def starts(**initial):
        made = []
        for method, count in initial.items():
            layers = [layer | {"initial_nnz": count} for layer in record(RUN, 0.5).result["layers"]]
            made.append(record(replace(RUN, method=method), 0.5, layers=layers))
        return figures.layer_density(made).axes[0].collections

    assert [line.get_label() for line in starts(set=9, ggr=9)] == ["start"]
    assert [line.get_label() for line in starts(set=9, gmp=99, ggr=9)] == ["start of GMP", "start of SET, GGR"]


def test_many_layers_are_numbered_instead_of_named():
    layer = record(RUN, 0.5).result["layers"][0]
    many = [layer | {"name": f"a.very.long.name.{i}"} for i in range(53)]
    figure = figures.layer_density([record(RUN, 0.5, layers=many)])
    assert figure.axes[1].get_xlabel() == "layer, from the input"
    assert lines(figure.axes[0])["GGR"].get_linestyle() == "-"


def test_masks_stand_side_by_side_in_the_order_of_the_paper(records):
    figure = figures.masks(one_column(records), "conv2")
    assert [axes.get_title() for axes in figure.axes] == ["SET", "RigL", "DSR", "GGR"]
    (image,) = figure.axes[3].get_images()
    first = next(one.run for one in one_column(records) if one.run.method == "ggr" and one.run.seed == 0)
    assert np.array_equal(image.get_array(), style.tile(masks(first)["conv2"]))


def test_an_unknown_layer_is_refused_with_the_nearest(records):
    with pytest.raises(ValueError, match=r"unknown layer 'conv22'\. Did you mean 'conv2'\?"):
        pictures(records, "conv22")


def test_a_kernel_becomes_a_tile():
    mask = np.zeros((2, 3, 2, 2), int)
    mask[1, 2] = [[1, 2], [3, 4]]
    assert style.tile(mask).tolist() == [[0] * 6, [0] * 6, [0, 0, 0, 0, 1, 2], [0, 0, 0, 0, 3, 4]]
    assert style.tile(np.ones((5, 4))).shape == (5, 4)
    assert style.tile(np.ones((5, 4, 3))).shape == (5, 12)


def test_a_large_mask_shrinks_to_means():
    image = np.array([[1, 1, 0, 0], [1, 0, 0, 0]])
    assert style.shrink(image, 2).tolist() == [[1.0, 0.0], [0.5, 0.0]]
    assert style.shrink(image, 1).tolist() == [[3 / 8]]
    uneven = style.shrink(np.ones((7, 1000)), 256)
    assert uneven.shape == (7, 256)
    assert uneven == pytest.approx(np.ones((7, 256)))


def test_density_over_time_begins_at_the_start_and_averages_the_seeds():
    runs = [replace(RUN, seed=seed) for seed in (0, 1)]
    known = [record(run, 0.5) for run in runs]
    (axes,) = [axes for axes in figures.density_over_time(known).axes if axes.get_visible()]
    drawn = lines(axes)["fc1"].get_ydata()
    index, size = list(SHAPES).index("fc1"), np.prod(SHAPES["fc1"])
    start = np.mean([one.result["layers"][index]["initial_nnz"] for one in known])
    last = np.mean([one.metrics[-1]["nnz"][index] for one in known])
    assert len(drawn) == 1 + RUN.epochs
    assert drawn[[0, -1]] == pytest.approx(np.array([start, last]) / size)


def test_an_empty_layer_is_drawn_on_the_lowest_line_and_called_empty():
    empty = record(RUN, 0.5)
    index = list(SHAPES).index("fc1")
    empty.metrics[-1]["nnz"][index] = 0
    line = lines(figures.density_over_time([empty]).axes[0])["fc1"]
    assert line.get_ydata()[-1] == pytest.approx(0.5 / np.prod(SHAPES["fc1"]))
    assert hover._TEXTS[line][-1].startswith(f"fc1, epoch {RUN.epochs}: 0.000%")


def test_accuracy_is_a_mean_in_a_band_and_dense_is_in_every_panel(records):
    figure = figures.accuracy_over_epochs(records)
    assert [axes.get_title() for axes in figure.axes] == ["s=0.97, ERK", "s=0.99, ERK", "s=0.97, uni", "s=0.99, uni"]
    for axes in figure.axes:
        assert list(lines(axes)) == ["Dense", "SET", "RigL", "DSR", "GGR"]
    final = [one.metrics[-1]["accuracy"] for one in one_column(records) if one.run.method == "ggr"]
    assert lines(figure.axes[0])["GGR"].get_ydata()[-1] == pytest.approx(np.mean(final))
    band = figure.axes[0].collections[-1].get_paths()[0].vertices
    assert band[:, 1].max() == pytest.approx(max(final))


def test_accuracy_of_dense_runs_alone():
    figure = figures.accuracy_over_epochs([record(replace(RUN, method="dense"), 0.5)])
    assert [list(lines(axes)) for axes in figure.axes] == [["Dense"]]


def test_a_run_under_way_is_drawn_as_far_as_it_is(tmp_path):
    write(tmp_path, RUN, 0.5, status="half")
    (picture,) = pictures(read_records(tmp_path))
    assert picture.name == "accuracy-digits-vgg-small"
    assert list(lines(picture.figure.axes[0])["GGR"].get_xdata()) == [1, 2]


def test_no_figure_without_an_epoch(tmp_path):
    write(tmp_path, RUN, status="planned")
    assert pictures(read_records(tmp_path)) == []


@pytest.mark.parametrize(
    ("columns", "shown"),
    [([(0.9, "erk"), (0.97, "erk")], "s=0.97, ERK"), ([(0.9, "uniform"), (0.99, "erk")], "s=0.99, ERK")],
)
def test_the_column_of_the_paper_is_shown_or_else_the_fullest(columns, shown):
    runs = [replace(RUN, sparsity=sparsity, start=start) for sparsity, start in columns]
    runs.append(replace(runs[-1], method="set"))
    first = pictures([record(run, 0.5) for run in runs])[0]
    assert first.caption.endswith(f"VGG-small on digits, {shown} start.")


def test_every_figure_is_named_and_the_third_layer_is_the_default(records):
    made = pictures(records)
    assert [one.name.split("-")[0] for one in made] == ["layers", "masks", "density", "accuracy"]
    assert "masks of layer conv3" in made[1].title
    assert "masks of layer fc2" in pictures(records, "fc2")[1].title


def test_files_are_the_same_bytes_every_time(records, tmp_path):
    def files(name):
        figure = figures.layer_density(one_column(records))
        return [path.read_bytes() for path in style.save(figure, tmp_path / name)]

    assert files("once") == files("again")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.png", "again.svg", "once.png", "once.svg"]
    with Image.open(tmp_path / "once.png") as image:
        assert image.width > 1000


def test_an_inline_drawing_refers_to_nothing_outside_and_follows_the_page(records):
    text = style.to_svg(figures.masks(one_column(records), "conv2"), "mine")
    assert text.startswith("<svg")
    assert "http" not in text
    assert "metadata" not in text
    assert all(name.startswith("mine-") for name in re.findall(r'\bid="([^"]*)"', text))
    assert set(re.findall(r'(?:href="#|url\(#)([^")]*)', text)) <= set(re.findall(r'\bid="([^"]*)"', text))
    assert "var(--c1f2937, #1f2937)" in text
    assert not re.search(r"(?<!, )#1f2937", text)


def test_the_global_style_is_left_alone(records):
    before = dict(matplotlib.rcParams)
    style.to_svg(figures.layer_density(one_column(records)), "x")
    assert dict(matplotlib.rcParams) == before


def contrast(first, second):
    def light(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    brighter, darker = sorted((light(first), light(second)), reverse=True)
    return (brighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("name", [*(look.label for look in all_looks()), "another"])
def test_every_method_is_visible_on_light_and_on_dark(name):
    on_light, on_dark = look_of_label(name).light, look_of_label(name).dark
    assert contrast(on_light, "#ffffff") >= 3
    assert contrast(on_dark, "#181e26") >= 3


@pytest.mark.parametrize("depth", np.linspace(0, 1, 9))
def test_every_depth_is_visible_on_both(depth):
    colour = matplotlib.colors.to_hex(style.DEPTH(depth))
    assert min(contrast(colour, "#ffffff"), contrast(colour, "#181e26")) >= 3
