"""What users' models do: buffers with unlucky names, powers, fixed dtypes, padding, plain models with zeros."""

import pytest
import torch
import torch.nn.functional as F
import transformers
from tests.shrinking.small import conv, linear, same, wired
from torch import nn

from rewire import shrink
from rewire.shrinking.graph import ShrinkError
from rewire.shrinking.shrink import shrink_with_report


def halves():
    """Two layers; the second output of the first has no inputs and is the constant 3."""
    return linear([[1, 2], [0, 0]], [0, 3]), linear([[1, 2]], [0])


class Shifted(nn.Module):
    """As Swin, a buffer of numbers whose name ends like that of a topology mask."""

    def __init__(self):
        super().__init__()
        self.first, self.last = halves()
        self.register_buffer("attn_mask", torch.tensor([[0.0], [-100.0]]))

    def forward(self, x):
        return self.last(self.first(x)) + self.attn_mask.sum()


def test_a_buffer_called_mask_returns_to_its_own_type():
    model = wired(Shifted()).float()
    small = shrink(model, torch.zeros(1, 2))
    assert small.first.out_features == 1
    assert small.attn_mask.dtype == torch.float32
    assert small.attn_mask.shape == (2, 1)
    assert small(torch.ones(1, 2)).dtype == torch.float32


class Gated(nn.Module):
    """A buffer with the name of a topology mask, but there is no weight that it belongs to."""

    def __init__(self):
        super().__init__()
        self.first, self.last = halves()
        self.register_buffer("gate_weight_mask", torch.tensor([0.5]))

    def forward(self, x):
        return self.last(self.first(x)) * self.gate_weight_mask


def test_a_mask_without_a_weight_is_no_topology():
    model = wired(Gated())
    small = shrink(model, torch.zeros(1, 2))
    assert small.first.out_features == 1
    assert small.gate_weight_mask.tolist() == [0.5]
    same(model.double(), small.double(), 2)


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.first, self.last = halves()
        self.function = function

    def forward(self, x):
        return self.last(self.function(self.first(x)))


@pytest.mark.parametrize(
    ("function", "constant"),
    [
        (lambda x: x**2, 9),
        (lambda x: 1 - x, -2),
        (lambda x: 2**x, 8),
        (lambda x: torch.rsub(x, 5, alpha=2), -1),
        (lambda x: 6 / (x + 3), 1),
        (lambda x: x.sub(1, alpha=2), 1),
        (lambda x: torch.div(x, 2, rounding_mode="floor"), 1),
    ],
)
def test_a_number_in_an_operation_stays_a_number(function, constant):
    model = wired(Function(function))
    small = shrink(model, torch.zeros(1, 2))
    assert small.first.out_features == 1
    assert small.last.bias.tolist() == [2 * constant]
    x = torch.rand(5, 2, dtype=torch.float64)
    torch.testing.assert_close(small(x), model(x))


class SinglePrecision(nn.Module):
    """Runs in float32 only, as Mixtral's experts do."""

    def __init__(self):
        super().__init__()
        self.first, self.last = halves()

    def forward(self, x):
        return self.last(self.first(x).to(torch.float32))


def test_a_model_that_fixes_float32_is_told_so():
    model = wired(SinglePrecision()).float()
    with pytest.raises(
        ShrinkError, match="SinglePrecision does not run in float64, in which it is shrunk and compared"
    ):
        shrink(model, torch.zeros(1, 2))


def test_an_example_that_does_not_fit_is_told_so():
    with pytest.raises(ShrinkError, match="Sequential does not run with this example: "):
        shrink(wired(nn.Sequential(*halves())), torch.zeros(1, 3))


class ByType(nn.Module):
    """Computes something else in float32 than in float64."""

    def __init__(self, wrong):
        super().__init__()
        self.first, self.last = halves()
        self.wrong = wrong

    def forward(self, x):
        y = self.last(self.first(x))
        return y if x.dtype == torch.float64 else self.wrong(y, self.first.out_features)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda y, width: y * width, "differs from the original by .* relative in its own precision"),
        (lambda y, width: y.view(-1, width // 2), "does not run in the original's precision"),
        (
            lambda y, width: y if width == 2 else y.double(),
            "its output is .* torch.float64 instead of .* torch.float32",
        ),
    ],
)
def test_the_model_that_is_returned_is_run_itself(wrong, message):
    with pytest.raises(ShrinkError, match=message):
        shrink(wired(ByType(wrong)).float(), torch.ones(1, 2))
    assert shrink(wired(ByType(wrong)), torch.ones(1, 2)).first.out_features == 1  # in float64 there is no difference


def test_the_difference_in_the_models_own_precision_is_reported():
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        report = shrink_with_report(wired(nn.Sequential(*halves())).to(dtype), torch.ones(1, 2))[1]
        assert report.difference <= 1e-12
        assert 0 <= report.own_difference <= torch.finfo(dtype).eps ** 0.5


def test_zeros_of_a_plain_model_are_missing_weights_if_one_says_so():
    model = nn.Sequential(*halves())
    with pytest.warns(UserWarning, match="2 exact zeros in layers without a mask count as weights: pass topology='non"):
        assert shrink(model, torch.zeros(1, 2))[0].out_features == 2
    small = shrink(model, torch.zeros(1, 2), topology="nonzero")
    assert small[0].out_features == 1
    assert small[1].bias.tolist() == [6]
    assert not [name for name, _ in small.named_buffers()]
    same(model, small, 2)
    packed = shrink(model, torch.zeros(1, 2), topology="nonzero", packed=True)
    assert packed[0].weight_values.tolist() == [1, 2]
    with pytest.raises(ValueError, match="topology must be masks by layer name or 'nonzero', not 'zero'"):
        shrink(model, torch.zeros(1, 2), topology="zero")


def test_a_mask_is_worth_more_than_zeros():
    model = wired(nn.Sequential(linear([[1, 2], [0, 0]], [0, 3]), linear([[1, 2]], [0])))
    model[0].weight_mask[1, 0] = True  # active, and zero for the moment
    assert shrink_with_report(model, torch.zeros(1, 2), topology="nonzero")[0][0].out_features == 2


def test_one_layer_by_itself():
    model = linear([[1, 2], [0, 0]], [0, 3])
    assert shrink_with_report(model, torch.zeros(1, 2), topology="nonzero")[1].weights == (2, 2)


PIXELS = [[[[1.0]]], [[[0.0]]]]  # one input channel, two output channels, the second without weights


class Padded(nn.Module):
    def __init__(self, constant, value, padding=(1, 1, 1, 1)):
        super().__init__()
        self.first, self.last = conv(PIXELS, [0, constant]), conv([[[[1.0, 2]], [[3.0, 4]]]], [0])
        self.value, self.padding = value, padding

    def forward(self, x):
        return self.last(F.pad(self.first(x), self.padding, value=self.value))


@pytest.mark.parametrize(
    ("constant", "value", "channels"),
    [(2, 0, 2), (2, 1, 2), (1, 1, 1), (2, 2, 1), (0, 0, 1), (0, 1, 2), (-1, 1, 2)],
)
def test_a_constant_stays_one_only_if_it_is_padded_with_itself(constant, value, channels):
    model = wired(Padded(constant, value))
    small = shrink_with_report(model, torch.zeros(1, 1, 3, 3))[0]
    assert small.first.out_channels == channels
    if channels == 1:
        assert small.last.bias is None or small.last.bias.tolist() == [7 * constant]
    same(model, small, 1, 3, 3)


class PaddedChannels(nn.Module):
    """A shortcut without weights, as in the first residual networks: missing channels are zero."""

    def __init__(self, first):
        super().__init__()
        self.first, self.last = first, conv([[[[1.0 + i]] for i in range(first.out_channels + 2)]], [0])

    def forward(self, x):
        return self.last(F.pad(self.first(x), (0, 0, 0, 0, 1, 1)))


@pytest.mark.parametrize("first", [conv(PIXELS, [0, 2]), conv([[[[0.0]]]], [2])])
def test_padded_channels_are_all_kept(first):
    model = wired(PaddedChannels(first))
    small, report = shrink_with_report(model, torch.zeros(1, 1, 3, 3))
    assert report.before == report.after
    same(model, small, 1, 3, 3)


class Beside(nn.Module):
    """Feature maps that are joined along their width, or as a larger batch."""

    def __init__(self, dim):
        super().__init__()
        self.first, self.second, self.dim = conv(PIXELS, [0, 2]), conv(PIXELS, [0, 5]), dim
        self.last = conv([[[[1.0]], [[2.0]]]], [0])

    def forward(self, x):
        return self.last(torch.cat([self.first(x), self.second(x)], dim=self.dim))


@pytest.mark.parametrize("dim", [0, 2, 3, -1])
def test_maps_that_are_joined_along_another_dimension_keep_their_channels(dim):
    model = wired(Beside(dim))
    small, report = shrink_with_report(model, torch.zeros(1, 1, 3, 3))
    assert report.before == report.after  # the constant is 2 in one half and 5 in the other
    same(model, small, 1, 3, 3)


class BesideAndFlat(Beside):
    """As many rows as channels, so that one could be taken for the other."""

    def __init__(self):
        super().__init__(dim=2)
        self.last = linear([[1.0, 2, 3, 4, 5, 6, 7, 8]], [0])

    def forward(self, x):
        return self.last(torch.cat([self.first(x), self.second(x)], dim=2).flatten(1))


def test_rows_are_not_taken_for_channels():
    model = wired(BesideAndFlat())
    small, report = shrink_with_report(model, torch.zeros(1, 1, 2, 1))
    assert report.before == report.after
    same(model, small, 1, 2, 1)


def test_prelu_remembers_how_many_slopes_it_has():
    prelu = nn.PReLU(2).double()
    prelu.weight.data = torch.tensor([0.5, 0.25], dtype=torch.float64)
    model = wired(nn.Sequential(linear([[1, 2], [0, 0]], [0, -4]), prelu, linear([[1, 10]], [0])))
    small = shrink(model, torch.zeros(1, 2))
    assert (small[1].num_parameters, small[1].weight.tolist()) == (1, [0.5])
    assert small[2].bias.tolist() == [-4 * 0.25 * 10]
    same(model, small, 2)
    shared = wired(nn.Sequential(linear([[1, 2], [0, 0]], [0, -4]), nn.PReLU().double(), linear([[1, 10]], [0])))
    assert shrink(shared, torch.zeros(1, 2))[1].num_parameters == 1


class Logits(nn.Module):
    """A model of Transformers as a function of token ids."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids):
        return self.model(input_ids=ids, return_dict=False)[0]


def transformer(name):
    sizes = {"vocab_size": 30, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2}
    if name == "clip":
        model = transformers.CLIPTextModel(
            transformers.CLIPTextConfig(**sizes, **heads, bos_token_id=0, eos_token_id=2)
        )
    elif name == "fnet":
        model = transformers.FNetModel(transformers.FNetConfig(**sizes))
    else:
        options = {"num_key_value_heads": 2, "num_local_experts": 2, "use_cache": False}
        model = transformers.MixtralModel(transformers.MixtralConfig(**sizes, **heads, **options))
    for path, module in model.named_modules():
        if path.endswith(("fc1", "intermediate.dense")):
            module.weight.data[::2] = 0
            module.bias.data[::2] = 0.5
    return Logits(model).eval()


IDS = torch.arange(12).view(2, 6)


@pytest.mark.filterwarnings("ignore")  # of Transformers, about its own calls of torch
@pytest.mark.parametrize("name", ["clip", "fnet"])
def test_transformers_whose_activations_are_powers(name):
    model = transformer(name)
    small, report = shrink_with_report(model, IDS, topology="nonzero")
    assert {shape[0]: after[0] for _, shape, after in report.layers if shape[0] == 32} == {32: 16}
    torch.testing.assert_close(small(IDS), model(IDS), rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_experts_without_a_kernel_for_float64_are_told_so():
    with pytest.raises(ShrinkError, match="Logits does not run in float64, in which it is shrunk and compared"):
        shrink(transformer("mixtral"), IDS)
