"""On several ranks the same topology as alone, for every method, after every step."""

import functools

import pytest
from tests.distributed.ranks import run
from tests.distributed.training import same, train

import rewire

CUBED = rewire.parts.Score("cubed", (rewire.core.Signal.WEIGHT, rewire.core.Signal.GRAD), lambda w, g: w + g**3)
SLOW = rewire.parts.Strongest(rewire.parts.GradientAverage(0.5))
VARIANTS = {name: (name, {}) for name in rewire.METHODS} | {
    "dsr": ("dsr", {"parts": {"drop": rewire.parts.BelowThreshold(initial=0.05)}}),
    "deepr": ("deepr", {"every": 1}),
    "acdc": ("acdc", {"until": 6, "steps": 6}),  # sparse at step 2, dense again at 4, sparse at 6
    "mest_soft": ("mest_soft", {"until": 6, "steps": 6}),  # the surplus falls at steps 4 and 6
    "chts": ("chts", {"chain": ["0", "2", "4", "6"], "initial": 0.6, "until": 6, "steps": 6}),
    "a rising density": ("ggr", {"parts": {"density": rewire.parts.Linear(0.2, 0.5, begin=0, until=4)}}),
    "a density that rises and falls": (
        "rigl",
        {"parts": {"density": rewire.parts.Stepwise((0.2, 0.5, 0.1), at=(2, 4)), "regrow_dropped": False}},
    ),
    "ggr by gradient, scaled": (
        "ggr",
        {"growth": "gradient", "parts": {"allocate": rewire.parts.GlobalTop(scale="layer")}},
    ),
    "a sample": ("ggr", {"sample": 1.0}),
    "connected and redrawn": ("ggr", {"start": "connected-erk", "init": "fan_in"}),
    "rigl without regrowth": ("rigl", {"parts": {"regrow_dropped": False}}),
    "network-wide snfs": ("snfs", {"parts": {"drop": rewire.parts.Lowest(scope="network")}}),
    "scores": (
        "ggr",
        {
            "parts": {
                "drop": rewire.parts.Lowest(rewire.parts.Saliency(), scope="network"),
                "allocate": rewire.parts.GlobalTop(CUBED, scale="layer"),
                "grow": rewire.parts.Mix(CUBED),
            }
        },
    ),
    "the largest weights": ("ggr", {"start": "magnitude-network"}),
    "a chosen average": ("snfs", {"parts": {"grow": SLOW, "allocate": rewire.parts.GlobalTop(SLOW.signal)}}),
    "a threshold that empties layers": ("dsr", {"parts": {"drop": rewire.parts.BelowThreshold(initial=9.0)}}),
}


@functools.cache
def alone():
    return {label: train(name, **settings) for label, (name, settings) in VARIANTS.items()}


def everything(how):
    return {label: train(name, how, **settings) for label, (name, settings) in VARIANTS.items()}


@pytest.mark.parametrize(("size", "how"), [(2, "wrapped last"), (4, "wrapped first"), (2, "fsdp"), (4, "fsdp")])
def test_every_method_has_the_topology_of_one_process(size, how, tmp_path):
    for rank in run(everything, size, tmp_path / "ranks", how):
        for label, states in rank.items():
            same(states, alone()[label])


def test_the_methods_do_rewire_here():
    for label, states in alone().items():
        assert bool(states[-1]["history"]) == (label != "static")
