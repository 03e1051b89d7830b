"""BSR matrices and semi-structured arrays are the weights that they are made of, and say what they cannot be."""

import pytest
import torch
from torch import nn

import rewire
from rewire._torch import from_semi_structured
from rewire.io import to_bsr, to_semi_structured, to_semi_structured_arrays
from rewire.parts import NM, Blocks


def trained(constraint, density, store="masked", convolution=False):
    torch.manual_seed(0)
    first = [nn.Conv2d(8, 8, 3), nn.Flatten()] if convolution else [nn.Linear(64, 32)]
    model = nn.Sequential(*first, nn.ReLU(), nn.Linear(8 if convolution else 32, 64 if not convolution else 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    method = rewire.ggr(density=density, every=2, until=8, fraction=0.3, constraint=constraint)
    exclude = None if constraint is None or isinstance(constraint, Blocks) else ["3" if convolution else "2"]
    rewirer = rewire.sparsify(model, optimizer, method, store=store, exclude=exclude)
    shape = (8, 3, 3) if convolution else (64,)
    for step in range(8):
        model(torch.randn(4, *shape, generator=torch.Generator().manual_seed(step))).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    rewirer.check()
    return model, rewirer


@pytest.mark.parametrize("store", ["masked", "packed"])
def test_blocks_are_bsr_and_multiply_alike(store):
    model, rewirer = trained(Blocks(4), 0.25, store)
    matrix = to_bsr(model, 4)["0.weight"]
    assert matrix.layout == torch.sparse_bsr
    assert matrix.values().shape == (rewirer.layers[0].nnz // 16, 4, 4)
    x = torch.randn(64, 5)
    dense = rewire.to_dense(model)[0].weight.detach()
    torch.testing.assert_close(matrix @ x, dense @ x)


def test_blocks_of_a_convolution_stay_whole():
    model, rewirer = trained(Blocks(4), 0.25, convolution=True)
    matrix = to_bsr(model, 4)["0.weight"]
    assert matrix.values().numel() == rewirer.layers[0].nnz
    expected = model[0].weight.detach().permute(0, 2, 3, 1).reshape(8, -1)
    assert torch.equal(matrix.to_dense(), expected)


class Experts(nn.Module):
    """Three matrices that share neither inputs nor outputs."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4, 8))

    def forward(self, x):
        return torch.einsum("bi,eoi->beo", x, self.weight)


rewire.register(Experts, inputs=2, outputs=1, stack=0)


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (nn.Linear(8, 4), lambda w: w),
        (nn.Conv2d(8, 8, 3, groups=2), lambda w: w.permute(0, 2, 3, 1).reshape(8, 36)),
        (nn.ConvTranspose2d(4, 8, 3), lambda w: w.permute(1, 2, 3, 0).reshape(8, 36)),
        (
            nn.ConvTranspose2d(4, 8, 3, groups=2),
            lambda w: torch.cat([half.permute(1, 2, 3, 0).reshape(4, 18) for half in w.chunk(2)]),
        ),
        (Experts(), lambda w: w.reshape(12, 8)),
    ],
    ids=["linear", "groups", "transposed", "transposed groups", "stack"],
)
def test_blocks_of_every_kind_of_layer_stay_whole(layer, expected):
    model = nn.Sequential(layer)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = rewire.static(density=0.25, start="uniform", constraint=Blocks(4, 2))
    rewirer = rewire.sparsify(model, optimizer, method, include=["0"])
    (matrix,) = to_bsr(model, 4, 2).values()
    assert matrix.values().numel() == rewirer.nnz  # no block is stored that is not full
    assert torch.equal(matrix.to_dense(), expected(layer.weight.detach()))


def test_blocks_that_do_not_divide_are_named():
    model, _ = trained(Blocks(4), 0.25)
    for side in (0, -4, 2.5):
        with pytest.raises(ValueError, match="a block has whole numbers of outputs and inputs, not 4 x"):
            to_bsr(model, 4, side)
    with pytest.raises(ValueError, match="the model has no sparse weight: sparsify it"):
        to_bsr(nn.Linear(4, 4), 2)
    with pytest.raises(ValueError, match="0.weight is a matrix of 32 x 64, which blocks of 5 x 5 do not divide"):
        to_bsr(model, 5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("store", ["masked", "packed"])
def test_semi_structured_arrays_are_half_of_the_weight(dtype, store):
    model, _ = trained(NM(2, 4), 0.4, store)
    values, metadata = to_semi_structured_arrays(model, dtype)["0.weight"]
    assert values.shape == (32, 32)
    assert values.dtype == dtype
    assert metadata.numel() * metadata.element_size() == values.numel() * values.element_size() // 8
    dense = rewire.to_dense(model)[0].weight.detach().to(dtype)
    assert torch.equal(from_semi_structured(values, metadata), dense)


def test_what_cannot_be_semi_structured_is_named():
    model, _ = trained(NM(2, 4), 0.4)
    with pytest.raises(ValueError, match="float16 or bfloat16, not torch.float32"):
        to_semi_structured_arrays(model, torch.float32)
    with pytest.raises(ValueError, match="0.weight has more than 2 weights in a group of 4 inputs"):
        to_semi_structured_arrays(trained(NM(3, 4), 0.7)[0])
    with pytest.raises(ValueError, match="8 outputs and 72 inputs; torch's semi-structured kernels"):
        to_semi_structured_arrays(trained(NM(2, 4), 0.4, convolution=True)[0])
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="on CUDA devices only"):
            to_semi_structured(model)
