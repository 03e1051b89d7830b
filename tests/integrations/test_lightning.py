"""Lightning: the same training as a plain loop, through its accumulation, clipping, checkpoints and processes."""

import csv

import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import rewire
from rewire.film.format import read, topology_after
from rewire.integrations.lightning import Rewire

pytestmark = pytest.mark.filterwarnings("ignore")  # of Lightning, about workers, logging intervals and its own calls
METHOD = rewire.ggr(density=0.2, every=3, until=20)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 4))


def data():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(96, 16, generator=generator)
    return TensorDataset(x, (x[:, :4] + x[:, 4:8]).argmax(1))


class Module(LightningModule):
    def __init__(self, late=False, optimizers=1):
        super().__init__()
        self.net = None if late else network()
        self.optimizers_wanted = optimizers

    def configure_model(self):
        self.net = network() if self.net is None else self.net

    def training_step(self, batch, index):
        x, y = batch
        return F.cross_entropy(self.net(x), y)

    def predict_step(self, batch, index):
        return self.net(batch[0])

    def configure_optimizers(self):
        made = [torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)]
        return made[: self.optimizers_wanted]


def loader():
    return DataLoader(data(), batch_size=8)


def trainer(folder, callback, epochs=2, **settings):
    options = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    return Trainer(max_epochs=epochs, callbacks=[callback], default_root_dir=folder, **options | settings)


def masks(model):
    return {name: buffer for name, buffer in model.named_buffers() if name.endswith("weight_mask")}


def same(a, b):
    assert a.state_dict().keys() == b.state_dict().keys()
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def plain_loop(epochs, accumulate, clip):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    rewirer = rewire.sparsify(model, optimizer, METHOD, seed=5)
    for _ in range(epochs):
        for index, (x, y) in enumerate(loader()):
            (F.cross_entropy(model(x), y) / accumulate).backward()
            if (index + 1) % accumulate == 0:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
                optimizer.step()
                optimizer.zero_grad()
    return model, rewirer


def test_a_fit_is_the_same_training_as_a_plain_loop(tmp_path):
    module, callback = Module(), Rewire(METHOD, seed=5)
    trainer(
        tmp_path,
        callback,
        epochs=3,
        accumulate_grad_batches=2,
        gradient_clip_val=0.5,
        logger=False,
        enable_checkpointing=False,
    ).fit(module, loader())
    model, rewirer = plain_loop(3, accumulate=2, clip=0.5)
    assert callback.rewirer.step == rewirer.step == 18
    assert callback.rewirer.history == rewirer.history
    assert len(rewirer.history) == 6
    assert same(module.net, model)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("method", [METHOD, rewire.snfs(density=0.2, every=3, until=20)])
def test_a_resumed_fit_equals_a_whole_one(tmp_path, late, method):
    whole = Module()
    trainer(tmp_path, Rewire(method), epochs=3, enable_checkpointing=False).fit(whole, loader())
    first = trainer(tmp_path, Rewire(method), epochs=1)
    first.fit(Module(), loader())
    first.save_checkpoint(tmp_path / "one.ckpt")
    module, callback = Module(late), Rewire(method)
    trainer(tmp_path, callback, epochs=3, enable_checkpointing=False).fit(
        module, loader(), ckpt_path=tmp_path / "one.ckpt", weights_only=True
    )
    assert callback.rewirer.step == 36
    assert same(module, whole)


def test_densities_are_logged_after_every_rewiring(tmp_path):
    callback, logger = Rewire(METHOD), CSVLogger(tmp_path)
    trainer(tmp_path, callback, epochs=1, logger=logger, enable_checkpointing=False).fit(Module(), loader())
    logger.save()
    with open(logger.experiment.metrics_file_path) as file:
        lines = [{key: float(value) for key, value in line.items()} for line in csv.DictReader(file)]
    assert [line["step"] for line in lines] == [0, 3, 6, 9, 12]
    assert {line["density"] for line in lines} == {callback.rewirer.density}
    assert lines[-1]["density/net.2"] == callback.rewirer.layers[1].density
    assert lines[0]["density/net.2"] != lines[-1]["density/net.2"]


def test_a_second_fit_goes_on_with_its_new_optimizer(tmp_path):
    module, callback = Module(), Rewire(METHOD)
    fitting = trainer(tmp_path, callback, epochs=1, enable_checkpointing=False)
    fitting.fit(module, loader())
    before = {name: mask.clone() for name, mask in masks(module).items()}
    fitting.fit_loop.max_epochs = 2
    fitting.fit(module, loader())
    assert callback.rewirer.step == 24
    assert callback.rewirer.store.optimizer is fitting.optimizers[0]
    assert any(not torch.equal(before[name], mask) for name, mask in masks(module).items())
    for layer in callback.rewirer.layers:
        assert not (layer.parameter.ne(0) & ~layer.mask).any()


def test_predicting_from_a_checkpoint_needs_no_optimizer(tmp_path):
    first = trainer(tmp_path, Rewire(METHOD), epochs=1)
    module = Module()
    first.fit(module, loader())
    first.save_checkpoint(tmp_path / "one.ckpt")
    other = Module()
    found = trainer(tmp_path, Rewire(METHOD), epochs=1).predict(other, loader(), ckpt_path=tmp_path / "one.ckpt")
    assert torch.equal(torch.cat(found), module.net(data().tensors[0]))


def test_bfloat16_and_a_compiled_module(tmp_path):
    module, callback = Module(), Rewire(METHOD)
    module.net.compile(backend="aot_eager")
    trainer(tmp_path, callback, epochs=1, precision="bf16-mixed", enable_checkpointing=False).fit(module, loader())
    assert len(callback.rewirer.history) == 4
    assert callback.rewirer.nnz == round(0.2 * (16 * 24 + 24 * 24 + 24 * 4))


def test_an_optimizer_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match=r"Rewire\(optimizer=0\) asks for an optimizer.*made 0"):
        trainer(tmp_path, Rewire(METHOD), enable_checkpointing=False).fit(Module(optimizers=0), loader())
    with pytest.raises(TypeError, match=r"call the method: rewire.ggr\(density=...\)"):
        Rewire(rewire.ggr)


class TwoOptimizers(Module):
    """Muon for the matrices in the middle, SGD for the rest, stepped by the module itself."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, index):
        self.manual_backward(super().training_step(batch, index))
        for optimizer in self.optimizers():
            optimizer.step()
            optimizer.zero_grad()

    def configure_optimizers(self):
        return list(two_optimizers(self.net))


def two_optimizers(net):
    rest = [parameter for parameter in net.parameters() if parameter is not net[2].weight]
    return torch.optim.Muon([net[2].weight], lr=0.02), torch.optim.SGD(rest, lr=0.1, momentum=0.9)


def test_several_optimizers_are_one_training(tmp_path):
    module, callback = TwoOptimizers(), Rewire(METHOD, optimizer=[0, 1], seed=5)
    trainer(tmp_path, callback, enable_checkpointing=False).fit(module, loader())
    model = network()
    optimizers = two_optimizers(model)
    rewirer = rewire.sparsify(model, optimizers, METHOD, seed=5)
    for x, y in [*loader(), *loader()]:
        F.cross_entropy(model(x), y).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert callback.rewirer.step == rewirer.step == 24
    assert callback.rewirer.history == rewirer.history
    assert len(rewirer.history) == 6
    assert same(module.net, model)
    callback.rewirer.check()


def test_a_resumed_fit_with_several_optimizers(tmp_path):
    whole = TwoOptimizers()
    trainer(tmp_path, Rewire(METHOD, optimizer=(0, 1)), epochs=3, enable_checkpointing=False).fit(whole, loader())
    first = trainer(tmp_path, Rewire(METHOD, optimizer=(0, 1)), epochs=1)
    first.fit(TwoOptimizers(), loader())
    first.save_checkpoint(tmp_path / "one.ckpt")
    module, callback = TwoOptimizers(), Rewire(METHOD, optimizer=(0, 1))
    trainer(tmp_path, callback, epochs=3, enable_checkpointing=False).fit(
        module, loader(), ckpt_path=tmp_path / "one.ckpt", weights_only=True
    )
    assert same(module, whole)


def test_sparse_weights_in_another_optimizer_than_the_one_that_was_named(tmp_path):
    with pytest.raises(ValueError, match="does not hold the weight of net.0, net.4: .*several optimizers"):
        trainer(tmp_path, Rewire(METHOD), enable_checkpointing=False).fit(TwoOptimizers(), loader())
    with pytest.raises(ValueError, match=r"not \[\]"):
        Rewire(METHOD, optimizer=[])


class Logging(Module):
    def training_step(self, batch, index):
        loss = super().training_step(batch, index)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss


def test_a_film_is_recorded_and_goes_on_after_resuming(tmp_path):
    callback = Rewire(METHOD, film=tmp_path / "film")
    first = trainer(tmp_path, callback, epochs=1)
    first.fit(Logging(), loader())
    first.save_checkpoint(tmp_path / "one.ckpt")
    resumed = Rewire(METHOD, film=tmp_path / "film")
    trainer(tmp_path, resumed, epochs=2).fit(Logging(), loader(), ckpt_path=tmp_path / "one.ckpt")
    lines = read(tmp_path / "film" / "film.rewire")
    rewirings = [line["step"] for line in lines if line["kind"] == "rewiring"]
    assert rewirings == [one.step for one in resumed.rewirer.history] == [3, 6, 9, 12, 15, 18]
    metrics = [line for line in lines if line["kind"] == "metrics"]
    assert [line["step"] for line in metrics] == [12, 24]
    assert all(0 < line["train_loss"] < 5 for line in metrics)
    assert topology_after(lines) == [layer.active().tolist() for layer in resumed.rewirer.layers]
