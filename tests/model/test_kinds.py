"""Which parameters of which module types are sparse, and how their dimensions are read."""

import pytest
import torch
from torch import nn

import rewire
from rewire.analysis.density import densities
from rewire.model import kinds
from rewire.model.layouts import Dimensions, layout_of
from rewire.model.select import endpoints, find_layers, units
from rewire.parts.start import erdos_renyi, erdos_renyi_kernel


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch):
    monkeypatch.setattr(kinds, "_registered", {})


def specs(model, **options):
    return {one.spec.name: one.spec for one in find_layers(model, **options)[0]}


class Conv1D(nn.Module):
    """As in GPT-2's code and its many copies."""

    def __init__(self, nf, nx):
        super().__init__()
        self.nf = nf
        self.weight = nn.Parameter(torch.randn(nx, nf))
        self.bias = nn.Parameter(torch.zeros(nf))

    def forward(self, x):
        return torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight).view(*x.shape[:-1], self.nf)


class Projection(nn.Module):
    def __init__(self, inputs=3, outputs=4):
        super().__init__()
        self.w = nn.Parameter(torch.randn(inputs, outputs))

    def forward(self, x):
        return x @ self.w


class Experts(nn.Module):
    def __init__(self, experts=2, inputs=3, outputs=4):
        super().__init__()
        self.up = nn.Parameter(torch.randn(experts, inputs, outputs))

    def forward(self, x):
        return torch.einsum("bi,eio->bo", x, self.up)


def test_the_three_projections_of_attention_are_one_layer_and_separate_ones_three():
    assert list(specs(nn.MultiheadAttention(8, 2))) == ["in_proj_weight", "out_proj"]
    apart = specs(nn.MultiheadAttention(8, 2, kdim=6, vdim=4))
    assert list(apart) == ["q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj"]
    assert apart["k_proj_weight"].shape == (8, 6)


def test_conv1d_has_its_inputs_first():
    spec = specs(nn.Sequential(Conv1D(5, 3)))["0"]
    assert units(spec) == (3, 5)
    inputs, outputs = endpoints(spec, torch.tensor([0, 4, 5, 14]))  # weight [3, 5]
    assert inputs.tolist() == [0, 0, 1, 2]
    assert outputs.tolist() == [0, 4, 0, 4]


def test_a_convolution_that_is_only_called_conv1d_is_not_taken_for_one():
    layer = Conv1D(5, 3)
    del layer.nf
    model = nn.Sequential(layer, nn.Linear(2, 2))
    found, left_out = find_layers(model)
    assert [one.spec.name for one in found] == ["1"]
    assert left_out["0.weight"].startswith("Conv1D is not a type that Rewire knows")


def test_bilinear():
    spec = specs(nn.Bilinear(2, 3, 4))["weight"]
    assert spec.shape == spec.matrix == (4, 2, 3)
    assert units(spec) == (2, 4)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_weights_stay_dense_until_they_are_asked_for(kind):
    model = nn.ModuleDict({"rnn": kind(3, 4), "head": nn.Linear(4, 2)})
    found, left_out = find_layers(model)
    assert [one.spec.name for one in found] == ["head"]
    assert left_out == {
        "rnn.weight_ih_l0": "recurrent: sparse only if include= names it or its type",
        "rnn.weight_hh_l0": "recurrent: sparse only if include= names it or its type",
    }
    assert list(specs(model, include=[kind, nn.Linear])) == ["rnn.weight_ih_l0", "rnn.weight_hh_l0", "head"]
    assert list(specs(model, include="rnn")) == ["rnn.weight_ih_l0", "rnn.weight_hh_l0"]
    assert list(specs(model, include="*_hh_*")) == ["rnn.weight_hh_l0"]
    assert list(specs(kind(3, 4), include="weight_*")) == ["weight_ih_l0", "weight_hh_l0"]


def test_lookers_see_a_recurrent_weight_that_was_asked_for():
    model = nn.Sequential(nn.LSTM(3, 4), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rewire.sparsify(model, optimizer, rewire.static(density=0.5, start="uniform"), include=nn.LSTM)
    seen = {one.spec.name: one.nnz for one in densities(model)}
    assert seen == {"0.weight_ih_l0": 24, "0.weight_hh_l0": 32, "1": 8}


def test_what_nobody_knows_is_named():
    model = nn.Sequential(Projection(), nn.Linear(4, 2))
    assert find_layers(model)[1] == {
        "0.w": "Projection is not a type that Rewire knows: if this multiplies, call rewire.register(Projection, "
        "weight='w', inputs=..., outputs=...)"
    }
    with pytest.raises(ValueError, match="nothing to make sparse: w: Projection is not a type"):
        find_layers(Projection())


def test_what_does_not_multiply_is_not_named():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(7, 4)
            self.norm = nn.LayerNorm([3, 4])
            self.cls_token = nn.Parameter(torch.zeros(1, 1, 4))
            self.position_embeddings = nn.Parameter(torch.zeros(1, 9, 4))
            self.relative_position_bias_table = nn.Parameter(torch.zeros(9, 2))
            self.rel_pos_h = nn.Parameter(torch.zeros(9, 2))
            self.layer_scale = nn.Parameter(torch.ones(4, 1, 1))
            self.attention_biases = nn.Parameter(torch.ones(2, 9))
            self.head = nn.Linear(4, 2)

    assert find_layers(Model())[1] == {}


@pytest.mark.parametrize("name", ["proj", "text_projection", "A_log", "token_mixer", "w", "position_wise"])
def test_names_that_could_multiply_are_named(name):
    model = nn.Sequential(nn.Linear(2, 2))
    model.register_parameter(name, nn.Parameter(torch.ones(2, 2)))
    assert name in find_layers(model)[1]


def test_own_types_by_registration():
    rewire.register(Projection, weight="w", inputs=0, outputs=1)
    spec = specs(nn.Sequential(Projection()))["0.w"]
    assert units(spec) == (3, 4)
    assert spec.transposed

    class Derived(Projection):
        pass

    assert list(specs(nn.Sequential(Derived()))) == ["0.w"]


def test_a_registered_subclass_of_linear_keeps_the_weight_of_linear():
    class WithAdapter(nn.Linear):
        def __init__(self):
            super().__init__(4, 4)
            self.down = nn.Parameter(torch.randn(2, 4))

    assert find_layers(nn.Sequential(WithAdapter()))[1].keys() == {"0.down"}
    rewire.register(WithAdapter, weight="down", inputs=1, outputs=0)
    model = nn.Sequential(WithAdapter())
    assert list(specs(model)) == ["0", "0.down"]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    packed = rewire.sparsify(model, optimizer, rewire.static(density=0.5), store="packed")
    assert packed.store.notes == {"0.down": "no kernel for WithAdapter.down"}
    assert {name: tuple(spec.shape) for name, spec in specs(model).items()} == {"0": (4, 4), "0.down": (2, 4)}


def test_a_registered_parameter_that_an_instance_does_without_is_not_mentioned():
    rewire.register(Projection, weight="w", inputs=0, outputs=1)
    rewire.register(Projection, weight="gate", inputs=0, outputs=1)
    model = nn.Sequential(Projection(), Projection())
    model[0].register_parameter("gate", None)
    assert find_layers(model)[1] == {"1.gate": "its gate is computed from others (a parametrization)"}


def test_a_stack_of_experts_is_one_layer_with_a_group_for_each():
    rewire.register(Experts, weight="up", stack=0, inputs=1, outputs=2)
    spec = specs(nn.Sequential(Experts()))["0.up"]
    assert spec.shape == (2, 3, 4)
    assert (spec.matrix, spec.groups, spec.stack, spec.transposed) == ((6, 4), 2, 2, True)
    assert units(spec) == (6, 8)
    inputs, outputs = endpoints(spec, torch.tensor([0, 11, 12, 23]))
    assert inputs.tolist() == [0, 2, 3, 5]
    assert outputs.tolist() == [0, 3, 4, 7]


def test_erk_gives_a_stack_what_its_matrices_would_get_as_layers():
    rewire.register(Experts, weight="up", stack=0, inputs=1, outputs=2)
    together = nn.Sequential(Experts(4, 10, 20), nn.Linear(20, 30))
    apart = nn.Sequential(*(nn.Linear(10, 20) for _ in range(4)), nn.Linear(20, 30))
    for rule in (erdos_renyi_kernel, erdos_renyi):
        one, last = rule(list(specs(together).values()), 340, [1] * 2)
        *experts, head = rule(list(specs(apart).values()), 340, [1] * 5)
        assert (one, last) == (sum(experts), head)


@pytest.mark.parametrize(
    ("inputs", "outputs", "stack"), [(1, 2, None), (0, 2, None), (0, 0, None), (2, 1, 1), ((0, 2), 1, None), ((), 1, 0)]
)
def test_orders_that_cannot_be_counted_are_refused(inputs, outputs, stack):
    with pytest.raises(ValueError, match="the dimensions must be the stack"):
        rewire.register(Projection, weight="w", inputs=inputs, outputs=outputs, stack=stack)


def test_register_refuses_what_is_no_type_and_shapes_that_do_not_fit():
    with pytest.raises(TypeError, match="register takes a module type"):
        rewire.register(Projection(), weight="w", inputs=0, outputs=1)
    with pytest.raises(TypeError, match="weight= is the name of a parameter, not 3"):
        rewire.register(Projection, weight=3, inputs=0, outputs=1)
    rewire.register(Projection, weight="w", stack=0, inputs=1, outputs=2)
    with pytest.raises(ValueError, match=r"Projection.w has shape \(3, 4\), but was registered with"):
        find_layers(Projection())


def test_heads_count_as_one_dimension():
    layout = layout_of(torch.Size([6, 2, 4]), Dimensions.of(inputs=0, outputs=(1, 2)))
    assert (layout.matrix, layout.transposed) == ((6, 8), True)
    layout = layout_of(torch.Size([6, 2, 4]), Dimensions.of(outputs=0, inputs=(1, 2)))
    assert (layout.matrix, layout.transposed) == ((6, 8), False)


def test_a_name_that_a_mask_would_take_is_left_alone():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].weight_mask = "mine"
    assert find_layers(model)[1] == {"0": "its module has an attribute called weight_mask already"}
