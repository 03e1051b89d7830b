"""The masks of every layer as small images for the page of a report, where people choose the layer."""

import base64
import io
from collections.abc import Mapping
from html import escape
from typing import Any

import matplotlib.image
import numpy as np
from numpy.typing import NDArray

from rewire.lab.report.style import MASK, shrink, tile

SIDE = 96  # pixels of an image at most
Topologies = Mapping[str, Mapping[str, NDArray[Any]]]  # masks by layer, by method


def layer_images(topologies: Topologies, first: str) -> str:
    """HTML with a row of images for each layer; a script shows one row at a time, beginning with layer ``first``."""
    names = list(dict.fromkeys(name for topology in topologies.values() for name in topology))
    rows = "".join(_row(name, topologies) for name in names)
    about = f"Masks of all {len(names)} layers"
    return f'<details class="layers" data-first="{escape(first)}"><summary>{about}</summary>{rows}</details>'


def _row(name: str, topologies: Topologies) -> str:
    masks = {method: np.asarray(topology[name]) != 0 for method, topology in topologies.items() if name in topology}
    images = {method: shrink(tile(mask), SIDE) for method, mask in masks.items()}
    brightest = max(float(image.max()) for image in images.values()) or 1.0
    figures = ""
    for method, mask in masks.items():
        about = f"{mask.sum():,} weights, {mask.mean():.2%}"
        alt = escape(f"Mask of {name}, {method}: {about}")
        source = _data_url(images[method] / brightest)
        figures += (
            f'<figure><img alt="{alt}" src="{source}"><figcaption>{escape(method)}<br>{about}</figcaption></figure>'
        )
    return f'<div class="masks" data-layer="{escape(name)}"><h4>{escape(name)}</h4><div>{figures}</div></div>'


def _data_url(image: NDArray[np.float64]) -> str:
    """A PNG inside the page."""
    buffer = io.BytesIO()
    matplotlib.image.imsave(buffer, image, vmin=0, vmax=1, cmap=MASK, format="png")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
