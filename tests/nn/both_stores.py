"""The same model in the masked and in the packed store, and how to compare the two."""

import copy

import torch

import rewire
from rewire.kernels.plan_cache import _PLANS
from rewire.nn.packed import Packed


def both_stores(model, method=None, **options):
    """The same model and topology in the masked and in the packed store, with their rewirers."""
    models, rewirers = {}, {}
    for store in ("masked", "packed"):
        models[store] = copy.deepcopy(model)
        optimizer = torch.optim.AdamW(models[store].parameters(), lr=1e-3)
        torch.manual_seed(0)
        rewirers[store] = rewire.sparsify(
            models[store], optimizer, method or rewire.static(density=0.3), store=store, seed=0, **options
        )
    return models, rewirers


def plan_kinds(layer):
    """Which kinds of index tables a packed layer has: token-major or batch-innermost ones."""
    _, plans = _PLANS.get(layer.weight_positions, (0, {}))
    return {key[0] for key in plans}


def packed_layers(model):
    return {name: module for name, module in model.named_modules() if isinstance(module, Packed)}


def gradients(model):
    """Of all parameters, as dense tensors."""
    found = {}
    for name, parameter in model.named_parameters():
        module = model.get_submodule(name.rpartition(".")[0])
        if isinstance(module, Packed) and name.endswith("weight"):
            found[name] = torch.zeros(module.dense_shape).flatten()
            found[name] = found[name].to(parameter).index_put((module.weight_positions.long(),), parameter.grad)
            found[name] = found[name].view(module.dense_shape)
        else:
            mask = dict(module.named_buffers(recurse=False)).get(f"{name.rpartition('.')[2]}_mask")
            found[name] = parameter.grad if mask is None or parameter.grad is None else parameter.grad * mask
    return found


def same_gradients(models, tolerance):
    masked, packed = gradients(models["masked"]), gradients(models["packed"])
    assert masked.keys() == packed.keys()
    for name, grad in masked.items():
        if grad is None:
            assert packed[name] is None
            continue
        scale = max(float(grad.abs().max()), 1e-3)
        torch.testing.assert_close(
            packed[name], grad, rtol=0, atol=tolerance * scale, msg=lambda m, n=name: f"{n}: {m}"
        )
