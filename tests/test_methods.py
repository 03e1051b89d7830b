import ast
import inspect

import pytest
import torch

import rewire
from rewire import methods

SETTINGS = {"density": 0.1, "every": 10, "until": 100}


def test_the_names_of_the_design():
    assert sorted(rewire.METHODS) == sorted(
        [
            *("static", "set", "rigl", "set_rigl", "dsr", "deepr", "snfs", "ggr", "gmp", "granet"),
            *("acdc", "gse", "mest", "mest_soft", "srigl", "chts"),
        ]
    )


@pytest.mark.parametrize("module", [methods, methods.registry, methods.baselines, methods.rewiring])
def test_methods_are_compositions_without_loops_and_ifs(module):
    tree = ast.parse(inspect.getsource(module))
    forbidden = (ast.For, ast.While, ast.If, ast.IfExp, ast.ListComp, ast.GeneratorExp, ast.DictComp, ast.Try)
    assert [type(node).__name__ for node in ast.walk(tree) if isinstance(node, forbidden)] == []


@pytest.mark.parametrize("name", list(rewire.METHODS))
def test_the_repr_is_code_that_builds_the_method(name):
    method = rewire.METHODS[name](**SETTINGS)
    names = vars(rewire.parts) | {"Method": rewire.Method, "Signal": rewire.core.Signal}
    assert eval(repr(method), names) == method


@pytest.mark.parametrize("name", list(rewire.METHODS))
def test_all_take_the_same_arguments(name):
    method = rewire.METHODS[name](**SETTINGS, fraction=0.2, start="uniform")
    assert method.density.ends()[1] == 0.1


def test_ggr_has_three_growths():
    grown = [rewire.ggr(**SETTINGS, growth=g).grow for g in ("mix", "gradient", "random")]
    assert grown == [rewire.parts.Mix(), rewire.parts.Strongest(), rewire.parts.AtRandom()]


def test_densities_per_layer_as_a_start():
    start = rewire.ggr(**SETTINGS, start={"0": 0.5}).start
    assert start == rewire.parts.Scattered(rewire.parts.Explicit({"0": 0.5}))
    assert [len(p) for p in start([rewire.core.LayerSpec("0", torch.Size([4, 5]))], 10, rewire.core.Context())] == [10]


def test_bad_arguments():
    with pytest.raises(ValueError, match="unknown start 'earth'"):
        rewire.set_(**SETTINGS, start="earth")
    with pytest.raises(ValueError, match="every must be a whole number"):
        rewire.gmp(density=0.1, every=0, until=10)
    with pytest.raises(ValueError, match="needs a last step"):
        rewire.gmp(density=0.1, every=1, until=None)
