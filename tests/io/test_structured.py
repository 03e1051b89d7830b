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


def test_blocks_that_do_not_divide_are_named():
    model, _ = trained(Blocks(4), 0.25)
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
