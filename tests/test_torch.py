"""Each private name of torch that is used does what this package relies on."""

import ast
import inspect
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn.parallel import DistributedDataParallel

from rewire import _torch


@pytest.mark.parametrize(
    ("base", "members", "others"),
    [
        (_torch.CONVOLUTION, [nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d], [nn.Linear]),
        (_torch.BATCH_NORM, [nn.BatchNorm1d, nn.BatchNorm2d, nn.SyncBatchNorm], [nn.InstanceNorm2d, nn.LayerNorm]),
        (_torch.INSTANCE_NORM, [nn.InstanceNorm1d, nn.InstanceNorm2d], [nn.BatchNorm2d]),
        (_torch.CHANNEL_NORM, [nn.BatchNorm2d, nn.InstanceNorm2d], [nn.LayerNorm, nn.GroupNorm]),
        (_torch.DROPOUT, [nn.Dropout, nn.Dropout2d, nn.AlphaDropout], [nn.Identity]),
        (_torch.POOLING, [nn.MaxPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d], [nn.Flatten]),
    ],
)
def test_base_classes(base, members, others):
    assert all(issubclass(member, base) for member in members)
    assert not any(issubclass(other, base) for other in others)


def test_dictionaries_of_a_module_are_the_module():
    module = nn.Sequential(nn.Linear(2, 3))
    linear = module[0]
    assert _torch.children_of(module) == {"0": linear}
    assert list(_torch.parameters_of(linear)) == ["weight", "bias"]
    _torch.parameters_of(linear)["bias"] = None
    assert linear.bias is None
    linear.register_buffer("mask", torch.ones(1))
    assert _torch.buffers_of(linear)["mask"] is linear.mask


def test_a_removed_buffer_leaves_nothing():
    module = nn.Module()
    module.register_buffer("mask", torch.ones(1), persistent=False)
    _torch.remove_buffer(module, "mask")
    _torch.remove_buffer(module, "mask")
    module.register_buffer("mask", torch.ones(1))
    assert "mask" in module.state_dict()


def test_a_load_hook_is_removed_by_its_function():
    calls = []

    def hook(module, state, prefix, *rest):
        calls.append(prefix)

    module = nn.Linear(2, 2)
    module.register_load_state_dict_pre_hook(hook)
    module.load_state_dict(module.state_dict())
    assert calls == [""]
    _torch.remove_load_hook(module, hook)
    module.load_state_dict(module.state_dict())
    assert calls == [""]


REGISTER = ["register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"]


@pytest.mark.parametrize("register", [*REGISTER, "register_full_backward_pre_hook"])
def test_hooks_of_a_module_are_seen(register):
    module = nn.Linear(2, 2)
    assert not _torch.has_hooks(module)
    handle = getattr(module, register)(lambda *_: None)
    assert _torch.has_hooks(module)
    assert _torch.has_forward_hooks(module) == ("forward" in register)
    handle.remove()
    assert not _torch.has_hooks(module)


@pytest.mark.parametrize("register", [*REGISTER, "register_full_backward_pre_hook"])
def test_hooks_of_all_modules_are_seen(register):
    handle = getattr(nn.modules.module, register.replace("register_", "register_module_"))(lambda *_: None)
    assert _torch.has_hooks(nn.Linear(2, 2))
    handle.remove()
    assert not _torch.has_hooks(nn.Linear(2, 2))


def test_the_version_counts_writes_but_not_through_data():
    tensor = torch.zeros(3)
    before = _torch.version(tensor)
    tensor.data.add_(1)
    assert _torch.version(tensor) == before
    tensor.add_(1)
    assert _torch.version(tensor) != before
    assert _torch.version(torch.zeros(3)) != _torch.version(tensor)


def test_a_plain_tensor_is_its_own_shard():
    tensor = torch.zeros(3)
    assert not _torch.is_dtensor(tensor)
    assert _torch.local_shard(tensor) is tensor


def test_a_compiled_model_holds_its_own():
    model = nn.Linear(2, 2)
    assert _torch.inside_compiled(torch.compile(model, backend="eager")) is model
    assert _torch.inside_compiled(model) is None


def test_tracing_is_noticed():
    seen = []

    class Model(nn.Module):
        def forward(self, x):
            seen.append(_torch.is_traced())
            return x + 1

    Model()(torch.zeros(1))
    torch.jit.trace(Model(), torch.zeros(1), check_trace=False)
    assert seen[0] is False
    assert seen[1] is True


def test_the_methods_that_compute_a_layers_output():
    for kind in (nn.Conv1d, nn.Conv2d):
        assert all(callable(getattr(kind, name)) for name in _torch.FORWARD_METHODS)
    assert "self._conv_forward(" in inspect.getsource(nn.Conv2d.forward)


def test_a_subclass_is_a_plain_tensor_without_its_torch_function():
    calls = []

    class Subclass(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            calls.append(func)
            with _torch.without_torch_function():
                return func(*args, **(kwargs or {}))

    tensor = torch.zeros(3).as_subclass(Subclass)
    with _torch.without_torch_function():
        assert tensor.shape == (3,)
    assert not calls
    assert tensor.shape == (3,)
    assert len(calls) == 1


def test_hooks_are_dictionaries_that_take_any_key():
    calls = []
    module = nn.Linear(2, 2)
    _torch.forward_pre_hooks(module)["ours"] = lambda module, args: calls.append("forward")
    _torch.state_dict_pre_hooks(module)["ours"] = lambda module, prefix, keep_vars: calls.append("save")
    _torch.load_post_hooks(module)["ours"] = lambda module, keys: calls.append("load")
    module(torch.zeros(2))
    module.load_state_dict(module.state_dict())
    assert calls == ["forward", "save", "load"]


def test_each_backward_pass_has_its_number():
    seen = []
    x = torch.ones(2, requires_grad=True)
    assert _torch.running_backward_pass() == -1
    x.register_hook(lambda _: seen.append(_torch.running_backward_pass()))
    for _ in range(2):
        (x * 2).sum().backward()
    assert len(set(seen)) == 2
    assert min(seen) >= 0


def test_compiling_is_not_exporting():
    class Told(nn.Module):
        def forward(self, x):
            return x + 1 if _torch.is_exporting() else x

    x = torch.zeros(2)
    assert not _torch.is_exporting()
    torch.testing.assert_close(torch.compile(Told(), backend="eager")(x), x)
    for strict in (False, True):
        torch.testing.assert_close(torch.export.export(Told(), (x,), strict=strict).module()(x), x + 1)


def test_writes_to_a_tensor_are_counted():
    tensor = torch.zeros(3)
    before = _torch.write_count(tensor)
    tensor[0] = 1
    assert _torch.write_count(tensor) == before + 1
    with torch.inference_mode():
        assert _torch.write_count(torch.zeros(3)) == -1


def test_semi_structured_arrays_hold_half_of_the_values_and_where_they_are():
    dense = torch.zeros(32, 64, dtype=torch.float16)
    dense[:, ::4], dense[:, 3::4] = 1.0, 2.0
    values, metadata = _torch.semi_structured_arrays(dense)
    assert values.shape == (32, 32)
    assert metadata.shape == (32, 4)
    assert torch.equal(_torch.from_semi_structured(values, metadata), dense)


SOURCE = Path(__file__).parents[1] / "src" / "rewire"
PRIVATE = {
    *("_parameters", "_buffers", "_modules", "_version", "_local_tensor", "_forward_hooks", "_forward_pre_hooks"),
    *("_backward_hooks", "_backward_pre_hooks", "_non_persistent_buffers_set", "_load_state_dict_pre_hooks"),
    *("_ConvNd", "_BatchNorm", "_InstanceNorm", "_NormBase", "_DropoutNd", "_C", "_assign_modules_buffers"),
}


@pytest.mark.parametrize("path", [path for path in SOURCE.rglob("*.py") if path.name != "_torch.py"], ids=str)
def test_no_other_file_uses_a_private_name_of_torch(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            assert node.attr not in PRIVATE, f"{path}:{node.lineno} uses {node.attr}: put it into _torch.py"
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            private = [alias.name for alias in node.names if alias.name.startswith("_")]
            assert not private, f"{path}:{node.lineno} imports {private}: put it into _torch.py"


def test_ddp_leaves_out_what_it_is_told_to():
    """One process is enough to see it."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        model.register_buffer("mask", torch.ones(1))
        _torch.ignore_in_ddp(model, {"0.weight"})
        _torch.ignore_in_ddp(model, {"mask"})
        wrapper = DistributedDataParallel(model)
        others = [model[0].bias, *model[1].parameters()]
        assert _torch.reduced_by_ddp(wrapper) == {id(parameter) for parameter in others}
        assert wrapper.modules_buffers == []
        assert wrapper.require_backward_grad_sync
        with wrapper.no_sync():
            assert not wrapper.require_backward_grad_sync
    finally:
        dist.destroy_process_group()


def test_a_function_is_called_at_the_end_of_the_backward_pass():
    calls = []
    parameter = nn.Parameter(torch.ones(2))
    last = nn.Parameter(torch.ones(2))

    def hook(_):
        if not calls:
            _torch.call_after_backward(lambda: calls.append(("end", last.grad is not None)))
        calls.append("hook")

    parameter.register_post_accumulate_grad_hook(hook)
    ((last * 2).sin() * parameter).sum().backward()
    assert calls == ["hook", ("end", True)]


def test_inner_calls_of_a_function_reach_a_subclass():
    """multi_head_attention_forward asks ``has_torch_function`` first and would hand over as a whole."""
    seen = []

    class Noisy(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            seen.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    x, weight = torch.randn(5, 1, 4), torch.randn(12, 4).as_subclass(Noisy)
    arguments = (x, x, x, 4, 2, weight, None, None, None, False, 0.0, torch.eye(4), None)
    expected = F.multi_head_attention_forward(*arguments)[0]
    assert seen[0] is F.multi_head_attention_forward
    seen.clear()
    assert torch.equal(_torch.handing_over_inner_calls(F.multi_head_attention_forward)(*arguments)[0], expected)
    assert F.linear in seen
    assert F.multi_head_attention_forward not in seen


def test_a_backward_that_is_differentiable_once_raises_where_torch_itself_would_return_a_constant():
    def times(decorator):
        class Times(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, weight):
                ctx.save_for_backward(x, weight)
                return x * weight

            @staticmethod
            @decorator
            def backward(ctx, *grads):
                x, weight = ctx.saved_tensors
                return grads[0] * weight, grads[0] * x

        return Times.apply

    x, weight = torch.tensor(3.0, requires_grad=True), torch.tensor(2.0, requires_grad=True)
    (slope,) = torch.autograd.grad(times(once_differentiable)(x, weight), x, create_graph=True)
    assert not slope.requires_grad  # the reason for a decorator of our own: its derivative by the weight is one
    ours = times(_torch.differentiable_once)
    assert torch.autograd.grad(ours(x, weight), (x, weight)) == (2.0, 3.0)
    slope, other = torch.autograd.grad(ours(x, weight), (x, weight), create_graph=True)
    assert (float(slope.detach()), float(other.detach())) == (2.0, 3.0)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        (slope * slope).backward()
    (partial,) = torch.autograd.grad(ours(x, weight.detach()), x, create_graph=True)  # one result is not needed
    assert float(partial.detach()) == 2.0
