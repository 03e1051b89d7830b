"""What a terminal of 80 columns shows while runs are carried out."""

import io

from rich.console import Console

from rewire.lab.cli.display import Display
from rewire.lab.run import Run


def test_80_columns_keep_the_numbers():
    out = io.StringIO()
    console = Console(width=80, file=out, force_terminal=True, color_system=None)
    runs = [
        Run(data="tiny-imagenet", model="mobilenet-v2", start="connected-uniform", lr=lr, epochs=200, seed=12)
        for lr in (0.1, 0.025)
    ]
    runs.append(Run(data="cifar100", model="resnet-18", method="set_rigl", growth="mix", epochs=200))
    with Display(runs, 2, {}, console) as display:
        for run in runs[:2]:
            display.listen(run, {"kind": "begin"})
            display.listen(run, {"kind": "epoch", "epoch": 101, "seconds": 321.0, "loss": 12.3456, "accuracy": 0.9637})
        display._bars.refresh()
    text = out.getvalue()
    assert "loss 12.346 accuracy 96.4%" in text
    assert "101/200" in text
    assert "left" in text
    assert all(len(line) <= 80 for line in text.replace("\r", "\n").splitlines() if "\x1b" not in line)


def test_lines_where_there_is_no_terminal():
    out = io.StringIO()
    runs = [Run(lr=0.1, epochs=1), Run(lr=0.2, epochs=1)]
    with Display(runs, 1, {}, Console(width=80, file=out)) as display:
        display.listen(runs[0], {"kind": "begin"})
        display.listen(runs[0], {"kind": "done", "accuracy": 0.5})
        display.listen(runs[1], {"kind": "failed", "error": "ValueError: no"})
    assert out.getvalue().splitlines() == [
        "all: vgg-small digits ggr 97% erk epochs 1",
        "[1/2] lr 0.1 seed 0: 50.00%",
        "[2/2] lr 0.2 seed 0: failed: ValueError: no",
    ]
