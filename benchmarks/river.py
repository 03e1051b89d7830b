"""``python -m benchmarks.river OUT.png``: the picture of the river in the documentation.

Trains VGG-small on the digits with GGR and with RigL, both recorded, and takes a picture of the page that shows the two
films side by side, in headless Chromium.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rewire.film.format import film_in
from rewire.film.server import page

METHODS = ("ggr", "rigl")
RUN = "--model vgg-small --sparsity 0.97 --epochs 20 --every 18 --until 0.9 --film"
BROWSER = "--headless --no-sandbox --disable-gpu --hide-scrollbars --no-first-run --disable-background-networking"
BROWSER += " --blink-settings=preferredColorScheme=1 --virtual-time-budget=6000 --window-size=1400,735"


def main(out: Path) -> None:
    """Train, record, and take the picture."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise FileNotFoundError("no chromium: install it to take the picture")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        films = []
        for method in METHODS:
            line = [sys.executable, "-m", "rewire.lab", "train", "--method", method, *RUN.split()]
            subprocess.run([*line, "--out", str(folder / method)], check=True)
            film = film_in(folder / method)
            if film is None:
                raise FileNotFoundError(f"{folder / method} holds no film")
            films.append((method, film))
        (folder / "page.html").write_text(page(films))
        address = (folder / "page.html").as_uri()
        line = [browser, *BROWSER.split(), f"--user-data-dir={folder / 'profile'}", f"--screenshot={out.resolve()}"]
        subprocess.run([*line, address], check=True, capture_output=True, timeout=120)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
