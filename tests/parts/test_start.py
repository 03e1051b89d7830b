import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rewire.core import LayerSpec
from rewire.core.layer import Context
from rewire.model.select import endpoints, units
from rewire.parts import STARTS, Connected, Dense, ErdosRenyi, ErdosRenyiKernel, Explicit, Scattered, Uniform
from rewire.parts.start import start_from


def specs(*shapes):
    return [LayerSpec(f"layer{i}", torch.Size(shape)) for i, shape in enumerate(shapes)]


def test_uniform_gives_every_layer_the_same_density():
    assert Uniform()(specs([10, 10], [20, 10], [5, 4]), 32, [1, 1, 1]) == [10, 20, 2]


def test_erk_by_hand():
    # Sums of the shapes: 4+1+3+3 = 11, 8+4+3+3 = 18, 10+8 = 18. With eps = 2 that is 22 + 36 + 36 = 94 weights:
    # densities 22/36, 36/288 and 36/80.
    assert ErdosRenyiKernel()(specs([4, 1, 3, 3], [8, 4, 3, 3], [10, 8]), 94, [1, 1, 1]) == [22, 36, 36]


def test_erk_pins_a_layer_that_would_exceed_density_one_and_solves_eps_again():
    # Sums 5, 50, 60. With 115 weights eps = 1, and the first layer gets 5 of its 6.
    # With 226 weights eps = 1.965 would give it 9.8 of 6: it is pinned, and eps = (226 - 6) / 110 = 2 for the others.
    layers = specs([2, 3], [20, 30], [20, 40])
    assert ErdosRenyiKernel()(layers, 115, [1, 1, 1]) == [5, 50, 60]
    assert ErdosRenyiKernel()(layers, 226, [1, 1, 1]) == [6, 100, 120]


def test_erdos_renyi_leaves_the_kernel_out():
    # Density proportional to 3 / 2 and to 30 / 200, of 18 and 1800 weights: counts as 27 to 270.
    assert ErdosRenyi()(specs([2, 1, 3, 3], [20, 10, 3, 3]), 99, [1, 1]) == [9, 90]


def test_explicit_densities_and_the_rest_shared():
    layers = [LayerSpec("stem", torch.Size([10, 10])), *specs([10, 10], [10, 20])]
    assert Explicit({"stem": 1.0})(layers, 130, [1, 1, 1]) == [100, 10, 20]
    assert Explicit({"layer0": 0.5, "*": 0.1})(layers, 80, [1, 1, 1]) == [10, 50, 20]


def test_explicit_densities_must_agree_with_the_budget():
    with pytest.raises(ValueError, match=r"ask for 30 weights .* allows 100 of 300; pass density=0.1"):
        Explicit({"*": 0.1})(specs([10, 10], [10, 20]), 100, [1, 1])
    with pytest.raises(ValueError, match="ask for 100"):
        Explicit({"layer0": 1.0})(specs([10, 10], [10, 20]), 30, [1, 1])


def test_explicit_densities_are_rounded_to_the_nearest_count():
    # 0.3 of 9 is 2.7, of 11 is 3.3, of 4 is 1.2; what is left of 20 goes to the layer that no glob matches.
    layers = [*specs([3, 3], [11, 1], [2, 2]), LayerSpec("rest", torch.Size([5, 5]))]
    assert Explicit({"layer*": 0.3})(layers, 20, [1] * 4) == [3, 3, 1, 13]
    # 0.1 of 4 is 0.4: nothing, but every layer gets at least what the placement needs.
    assert Explicit({"layer*": 0.1})(layers, 20, [1] * 4) == [1, 1, 1, 17]
    assert Explicit({"layer*": 0.1})(layers, 20, [2, 1, 3, 1]) == [2, 1, 3, 14]


def test_a_budget_and_densities_that_differ_by_rounding_only_agree():
    # Half of 5 is 2.5: each layer rounds to 2, together 6. The whole network has half of 15, 7.5, which rounds to 8.
    layers = specs([5, 1], [5, 1], [5, 1])
    assert Explicit({"*": 0.5})(layers, 8, [1] * 3) == [3, 3, 2]
    assert Explicit({"*": 0.5})(layers, 9, [1] * 3) == [3, 3, 3]  # by at most one per layer
    assert Explicit({"*": 0.5})(layers, 3, [1] * 3) == [1, 1, 1]
    for n in (10, 2):
        with pytest.raises(ValueError, match=f"ask for 6 weights .* allows {n} of 15; pass density=0.4"):
            Explicit({"*": 0.5})(layers, n, [0] * 3)


def test_explicit_glob_that_matches_nothing():
    with pytest.raises(ValueError, match=r"no sparse layer matches 'head\*'; the layers are layer0"):
        Explicit({"head*": 0.1})(specs([10, 10]), 10, [1])


def test_explicit_density_out_of_range():
    with pytest.raises(ValueError, match=r"density of 'a' must lie in \(0, 1\], not 1.5"):
        Explicit({"a": 1.5})


def test_dense_is_all_or_nothing():
    assert Dense()(specs([2, 3]), 6, [1]) == [6]
    with pytest.raises(ValueError, match=r"dense start has all 6 weights, .* allows 3"):
        Dense()(specs([2, 3]), 3, [1])


shapes = st.one_of(
    st.tuples(st.integers(1, 12), st.integers(1, 12)),
    st.tuples(st.integers(1, 8), st.integers(1, 8), st.just(3), st.just(3)),
)


@given(st.lists(shapes, min_size=1, max_size=6), st.data())
def test_every_start_is_exact(layer_shapes, data):
    layers = specs(*layer_shapes)
    total = sum(spec.numel for spec in layers)
    n = data.draw(st.integers(len(layers), total))
    for name, start in STARTS.items():
        if name in ("dense", "nonzero"):
            continue
        weights = [torch.randint(-2, 3, spec.shape).float() for spec in layers]  # with many ties
        positions = start(layers, n, Context(weights=weights))
        assert sum(map(len, positions)) == n, name
        for spec, placed in zip(layers, positions, strict=True):
            assert len(placed) >= 1
            assert placed.tolist() == sorted(set(placed.tolist()))
            assert 0 <= placed[0] <= placed[-1] < spec.numel


@given(
    st.integers(1, 3),
    st.integers(1, 5),
    st.integers(1, 5),
    st.booleans(),
    st.sampled_from([(), (3,), (1, 1), (3, 3), (2, 3, 3)]),
)
def test_a_connected_layer_gives_every_output_an_input_and_every_input_an_output(groups, a, b, transposed, kernel):
    spec = LayerSpec("layer", torch.Size([a * groups, b, *kernel]), groups=groups, transposed=transposed)
    fewest = max(a, b) * groups
    (placed,) = Connected(Uniform())([spec], fewest, Context())
    inputs, outputs = endpoints(spec, placed)
    assert len(placed) == fewest
    assert set(inputs.tolist()) == set(range(units(spec)[0]))
    assert set(outputs.tolist()) == set(range(units(spec)[1]))


def test_what_small_layers_need_is_taken_from_the_larger():
    # Uniform would give 1 and 40; but the first layer needs max(4, 4) = 4 to be connected.
    layers = specs([4, 4], [32, 20])
    assert [len(p) for p in Scattered(Uniform())(layers, 41, Context())] == [1, 40]
    assert [len(p) for p in Connected(Uniform())(layers, 41, Context())] == [4, 37]


def test_a_budget_too_small_to_connect_everything_goes_as_far_as_it_can():
    layers = specs([8, 8], [16, 8])
    placed = Connected(Uniform())(layers, 12, Context())
    assert [len(p) for p in placed] == [4, 8]
    _inputs, outputs = endpoints(layers[1], placed[1])
    assert len(set(outputs.tolist())) == 8  # each weight connects an output of its own


def test_outputs_come_before_inputs_when_the_budget_is_tight():
    # 4 outputs of 16 inputs, and 16 of 4: 20 weights give every output an input; the 12 other inputs have to wait.
    layers = specs([4, 16], [16, 4])
    for spec, placed in zip(layers, Connected(Uniform())(layers, 20, Context()), strict=True):
        _inputs, outputs = endpoints(spec, placed)
        assert sorted(outputs.tolist()) == list(range(spec.shape[0]))


def test_seeds_give_different_positions_and_the_same_seed_the_same():
    layers = specs([30, 30])
    a, b, c = (STARTS["erk"](layers, 90, Context(seed=seed))[0].tolist() for seed in (0, 0, 1))
    assert a == b
    assert a != c


def test_unknown_start_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match="unknown start 'unifrom'. Did you mean 'uniform'"):
        start_from("unifrom")
    with pytest.raises(ValueError, match="unknown start 3"):
        start_from(3)
