import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from tests.networks import OPTIMIZERS, batch, mlp, train
from torch import nn

import rewire


def sparse(method=None, optimizer="momentum", **options):
    model = mlp(dtype=torch.float64)
    optimizer = OPTIMIZERS[optimizer](model.parameters())
    method = method or rewire.ggr(density=0.3, every=4, until=100)
    return model, optimizer, rewire.sparsify(model, optimizer, method, **options)


def weights(rewirer):
    return [layer.parameter.detach().clone() for layer in rewirer.layers]


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


# --- one rewiring by hand ----------------------------------------------------------------------------------------


def test_one_rewiring_by_hand():
    model = nn.Linear(4, 2, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    method = rewire.rigl(density=0.5, every=1, until=1, fraction=0.5)
    rewirer = rewire.sparsify(model, optimizer, method)
    mask = torch.tensor([[True, False, True, False], [False, True, False, True]])
    model.weight_mask.copy_(mask)  # as loading a state_dict does
    model.weight.data.copy_(torch.tensor([[0.5, 0, 0.2, 0], [0, -0.9, 0, 0.4]]))
    model.weight.grad = torch.tensor([[0.4, 7.0, 0.1, -0.5], [3.0, 0.1, 0.0, 0.1]])
    optimizer.step()
    # The step: 0.5-0.4, 0.2-0.1, -0.9-0.1, 0.4-0.1 = 0.1, 0.1, -1.0, 0.3. Half of four go: 0 and 2 (the new 0.1s).
    # Candidates' |g|: 0:.4 1:7 2:.1 3:.5 4:3 6:0. Grown: 1 and 4, with 1e-10 and no momentum.
    record = rewirer.history[0]
    assert record == rewire.Rewiring(step=1, fraction=0.5, dropped=[2], grown=[2], regrown=[0])
    assert model.weight_mask.tolist() == [[False, True, False, False], [True, True, False, True]]
    expected = torch.tensor([[0, 1e-10, 0, 0], [1e-10, -1.0, 0, 0.3]])
    assert torch.allclose(model.weight, expected, atol=1e-6, rtol=0)
    assert model.weight[0, 1] == 1e-10
    momentum = optimizer.state[model.weight]["momentum_buffer"]
    assert torch.allclose(momentum, torch.tensor([[0, 0, 0, 0], [0, 0.1, 0, 0.1]]))
    model.weight.grad = torch.zeros(2, 4)
    optimizer.step()  # momentum moves the old weights only
    assert model.weight[0, 1] == 1e-10


def test_deepr_sees_the_flips_of_the_update_itself():
    model = nn.Linear(4, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    rewirer = rewire.sparsify(model, optimizer, rewire.deepr(density=0.5))
    model.weight_mask.copy_(torch.tensor([[True, True, False, False]]))
    model.weight.data.copy_(torch.tensor([[0.5, -0.2, 0, 0]]))
    model.weight.grad = torch.tensor([[0.6, 0.1, 5.0, 5.0]])
    optimizer.step()  # 0.5 - 0.6 < 0: dropped; -0.2 - 0.1 stays
    assert rewirer.history[0].dropped == [1]
    assert rewirer.nnz == 2
    assert model.weight[0, 1].item() == pytest.approx(-0.3)
    assert abs(model.weight[model.weight_mask]).min() == 1e-10


# --- the loop's own habits ---------------------------------------------------------------------------------------


def test_accumulated_gradients_are_ranked_as_one():
    results = []
    for parts in (1, 4):
        model, optimizer, rewirer = sparse()
        for step in range(8):
            x, y = batch(step, dtype=torch.float64)
            for chunk_x, chunk_y in zip(x.chunk(parts), y.chunk(parts), strict=True):
                (F.cross_entropy(model(chunk_x), chunk_y) / parts).backward()
            optimizer.step()
            optimizer.zero_grad()
        results.append((rewirer.history, weights(rewirer)))
    assert results[0][0] == results[1][0]
    assert all(torch.allclose(a, b) for a, b in zip(results[0][1], results[1][1], strict=True))


def test_clipping_sees_active_gradients_only():
    model, optimizer, rewirer = sparse()
    for step in range(3):  # the fourth step rewires, and needs the others until then
        x, y = batch(step, dtype=torch.float64)
        F.cross_entropy(model(x), y).backward()
        active = [layer.parameter.grad[layer.mask] for layer in rewirer.layers]
        biases = [module.bias.grad for module in model if isinstance(module, nn.Linear)]
        expected = torch.cat([g.flatten() for g in active + biases]).norm()
        assert torch.allclose(nn.utils.clip_grad_norm_(model.parameters(), 0.1), expected)
        optimizer.step()
        optimizer.zero_grad()


def test_clipping_by_norm_does_not_change_what_is_grown():
    grown = []
    for clip in (False, True):
        model, optimizer, rewirer = sparse(rewire.rigl(density=0.3, every=1, until=100), "sgd")
        x, y = batch(0, dtype=torch.float64)
        F.cross_entropy(model(x), y).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        for group in optimizer.param_groups:
            group["lr"] = 0.0  # the same weights, so the same drop
        optimizer.step()
        grown.append([layer.mask.clone() for layer in rewirer.layers])
    assert same(*grown)


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_the_grad_scaler_skips_is_not_counted(fused):
    torch.manual_seed(0)
    model = nn.Linear(6, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=fused)
    rewirer = rewire.sparsify(model, optimizer, rewire.rigl(density=0.5, every=3, until=100))
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for step in range(9):
        x, y = batch(step, (6,))
        loss = F.cross_entropy(model(x), y) * (float("inf") if step in (1, 2, 5) else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert rewirer.step == 6  # 9 calls, 3 of them skipped
    assert [record.step for record in rewirer.history] == [3, 6]


def test_fused_and_ordinary_scaling_grow_the_same():
    masks = []
    for fused in (False, True):
        model = mlp()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=fused)
        rewirer = rewire.sparsify(model, optimizer, rewire.ggr(density=0.3, every=2, until=100, growth="gradient"))
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for step in range(2):
            x, y = batch(step)
            scaler.scale(F.cross_entropy(model(x), y)).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        masks.append([layer.mask for layer in rewirer.layers])
    assert same(*masks)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["rigl", "set"])
def test_with_gradients_that_are_not_finite_rewiring_is_put_off(bad, name):
    model, optimizer, rewirer = sparse(rewire.METHODS[name](density=0.3, every=2, until=100), "sgd")
    for group in optimizer.param_groups:
        group["lr"] = 0.0  # the weights stay finite
    train(model, optimizer, 1, dtype=torch.float64)
    x, y = batch(1, dtype=torch.float64)
    F.cross_entropy(model(x), y).backward()
    rewirer.layers[1].parameter.grad[0, 0] = bad
    masks = [layer.mask.clone() for layer in rewirer.layers]
    with pytest.warns(UserWarning, match="the gradient of 2 is not finite: rewiring is put off"):
        optimizer.step()
    optimizer.zero_grad()
    assert rewirer.history == []
    assert same(masks, [layer.mask for layer in rewirer.layers])
    with torch.no_grad():
        for layer in rewirer.layers:
            layer.parameter.nan_to_num_()
    train(model, optimizer, 3, begin=2, dtype=torch.float64)
    assert [record.step for record in rewirer.history] == [3, 4]  # the next step, and the next in time
    assert rewirer.history[0].fraction == pytest.approx(0.1)  # that of step 2


# --- what changes under way --------------------------------------------------------------------------------------


def test_a_layer_frozen_later_is_reported_and_left_alone():
    model, optimizer, rewirer = sparse()
    train(model, optimizer, 4, dtype=torch.float64)
    model[2].weight.requires_grad_(False)
    frozen, nnz = model[2].weight_mask.clone(), rewirer.nnz
    with pytest.warns(UserWarning, match="the weight of 2 was frozen after sparsify"):
        train(model, optimizer, 8, begin=4, dtype=torch.float64)
    assert torch.equal(model[2].weight_mask, frozen)
    assert rewirer.nnz == nnz
    assert len(rewirer.history) == 3
    assert "fixed: 2" in str(rewirer)


def test_layers_added_later_are_reported_and_stay_dense():
    model, optimizer, rewirer = sparse()
    model.append(nn.Linear(4, 4).double())
    optimizer.add_param_group({"params": model[5].parameters()})
    with pytest.warns(UserWarning, match="5 was added after sparsify: it stays dense"):
        train(model, optimizer, 5, dtype=torch.float64)
    assert (model[5].weight != 0).all()
    assert len(rewirer.history) == 1


def test_a_replaced_parameter_is_reported():
    model, optimizer, rewirer = sparse()
    model[0].weight = nn.Parameter(torch.randn(16, 12, dtype=torch.float64))
    optimizer.add_param_group({"params": [model[0].weight]})
    with pytest.warns(UserWarning, match="the weight of 0 was replaced after sparsify"):
        train(model, optimizer, 5, dtype=torch.float64)
    assert (model[0].weight != 0).all()
    assert rewirer.history[0].dropped[0] == 0


@pytest.mark.parametrize("store", ["masked", "packed"])
def test_a_module_that_was_taken_out_of_the_model_keeps_its_weights(store):
    """A head is replaced in the middle of a training: what is left does not get the weights of the old one."""
    model = mlp(dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    method = rewire.ggr(density=0.3, every=2, until=1000, fraction=0.4)
    rewirer = rewire.sparsify(model, optimizer, method, store=store)
    train(model, optimizer, 3, dtype=torch.float64)
    rewirer.check()
    old, model[4] = model[4], nn.Linear(16, 4).double()
    optimizer.add_param_group({"params": model[4].parameters()})
    before = rewirer.layers[-1].nnz
    with pytest.warns(UserWarning, match="the weight of 4 was taken out of the model after sparsify: .* budget"):
        train(model, optimizer, 6, dtype=torch.float64)
    assert old is rewirer.layers[-1].module
    assert rewirer.layers[-1].nnz == before
    assert sum(rewirer.history[-1].dropped) > 0
    with pytest.raises(RuntimeError, match="4: its module is not in the model"):
        rewirer.check()


# --- what users see ----------------------------------------------------------------------------------------------


def test_on_rewire_gets_each_record():
    seen = []
    model, optimizer, rewirer = sparse(on_rewire=seen.append)
    train(model, optimizer, 9, dtype=torch.float64)
    assert seen == rewirer.history
    assert len(seen) == 2
    for record in seen:
        assert sum(record.dropped) == sum(record.grown)
        assert all(r <= min(d, g) for d, g, r in zip(record.dropped, record.grown, record.regrown, strict=True))


def test_remove_leaves_a_plain_model_with_zeros_in_place():
    model, optimizer, rewirer = sparse()
    train(model, optimizer, 5, dtype=torch.float64)
    nnz = rewirer.nnz
    rewirer.remove()
    assert set(model.state_dict()) == set(mlp().state_dict())
    assert sum(int((module.weight != 0).sum()) for module in model if isinstance(module, nn.Linear)) <= nnz
    x, y = batch(0, dtype=torch.float64)
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    assert int((model[2].weight != 0).sum()) > nnz  # dense training again
    assert len(rewirer.history) == 1


def test_the_seed_decides_the_topology():
    masks = [[layer.mask for layer in sparse(seed=seed)[2].layers] for seed in (0, 0, 1)]
    assert same(masks[0], masks[1])
    assert not same(masks[0], masks[2])


def test_the_global_generator_is_not_touched():
    model, optimizer, _rewirer = sparse()
    torch.manual_seed(5)
    before = torch.get_rng_state()
    train(model, optimizer, 5, dtype=torch.float64)
    assert torch.equal(before, torch.get_rng_state())


def test_freezing_everything_or_adding_a_lazy_layer_does_not_stop_training():
    model, optimizer, rewirer = sparse()
    train(model, optimizer, 1, dtype=torch.float64)
    for layer in rewirer.layers:
        layer.parameter.requires_grad_(False)
    with pytest.warns(UserWarning, match="frozen after sparsify"):
        train(model, optimizer, 4, begin=1, dtype=torch.float64)
    assert rewirer.history == []


def test_a_removed_rewirer_says_so_and_can_be_removed_again():
    _model, _optimizer, rewirer = sparse()
    rewirer.remove()
    rewirer.remove()
    assert str(rewirer) == "Rewirer (removed)"
    with pytest.raises(RuntimeError, match="its Rewirer was removed"):
        _ = rewirer.nnz


def test_a_rewirer_cannot_be_copied():
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.deepcopy(sparse()[2])


@pytest.mark.parametrize("name", ["set", "rigl", "set_rigl", "ggr", "snfs", "dsr"])
@pytest.mark.parametrize("density", [0.95, 1.0])
def test_an_almost_dense_network_without_regrowth(name, density):
    method = rewire.METHODS[name](density=density, every=1, until=100, fraction=0.3)
    model, optimizer, rewirer = sparse(replace(method, regrow_dropped=False))
    nnz = rewirer.nnz
    train(model, optimizer, 3, dtype=torch.float64)
    assert rewirer.nnz == nnz
