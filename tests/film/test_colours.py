"""The colours of the page: told apart by everyone, and readable on both grounds."""

import json
import re

import numpy as np
import pytest
from tests.film.test_page import browser, opened

from rewire.film.server import page

# Machado, Oliveira and Fernandes 2009, severity 1: what linear RGB becomes for people without one kind of cone.
BLINDNESS = {
    "nothing": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def lab(colour, matrix):
    """CIELAB of a colour such as #00795a as it is seen with a kind of colour blindness."""
    x, y, z = np.cbrt(TO_XYZ @ (np.array(matrix) @ linear(colour)).clip(0, 1) / TO_XYZ.sum(1))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("blindness", BLINDNESS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_that_mean_something_differ_for_everyone(scheme, blindness):
    blocks = re.findall(r":root \{(.*?)\}", page(), re.DOTALL)
    palette = dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6});", blocks[scheme == "dark"]))
    for one, other in [("born", "dropped"), ("born", "ink"), ("dropped", "ink"), ("loss", "accuracy")]:
        distance = np.linalg.norm(lab(palette[one], BLINDNESS[blindness]) - lab(palette[other], BLINDNESS[blindness]))
        assert distance > 15, (one, other, distance)
    for text in ("ink", "soft", "born", "dropped", "loss", "accuracy"):
        assert contrast(palette[text], palette["ground"]) >= 4.5, text


# Appended to the page: the colours of the bands of networks of several depths, as they are drawn.
BANDS = """<script>(() => {
  const canvas = document.createElement("canvas"), c = canvas.getContext("2d");
  const drawn = (...colours) => {
    for (const colour of colours) { c.fillStyle = colour; c.fillRect(0, 0, 1, 1); }
    return "#" + [...c.getImageData(0, 0, 1, 1).data].slice(0, 3).map((v) => v.toString(16).padStart(2, "0")).join("");
  };
  const bands = [2, 3, 5, 8, 16, 21, 54].map((n) =>
    Array.from({length: n}, (_, i) => drawn(css("--ground"), hue(i, n, 0.82))));
  document.title = JSON.stringify([dark(), css("--ground"), bands]);
})();</script>"""


@browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_neighbouring_bands_differ_for_everyone_and_from_the_ground(scheme, tmp_path):
    (tmp_path / "probe.html").write_text(page() + BANDS)
    dom = opened(f"file://{tmp_path / 'probe.html'}", tmp_path, scheme=scheme)
    is_dark, ground, networks = json.loads(dom.partition("<title>")[2].partition("</title>")[0])
    assert is_dark == (scheme == "dark")
    for matrix in BLINDNESS.values():
        for bands in networks:
            seen = np.array([lab(colour, matrix) for colour in bands])
            assert np.linalg.norm(np.diff(seen, axis=0), axis=1).min() > 8, bands
            assert np.linalg.norm(seen - lab(ground, matrix), axis=1).min() > 20, bands


def contrast(one, other):
    """The ratio of luminances, as WCAG defines it."""
    y = [TO_XYZ[1] @ linear(colour) for colour in (one, other)]
    return (max(y) + 0.05) / (min(y) + 0.05)


def linear(colour):
    rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
