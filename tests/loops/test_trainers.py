"""Weight averaging through Lightning's callbacks and through a callback of Transformers' Trainer."""

import copy
import pickle

import pytest
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging, StochasticWeightAveraging, WeightAveraging
from tests.integrations.test_lightning import METHOD, Module, loader, trainer
from tests.integrations.test_transformers import METHOD as VIT_METHOD
from tests.integrations.test_transformers import Images, arguments, vit
from tests.loops.loops import assert_same_topology, assert_zero_off_mask, dense, masks
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from transformers import Trainer, TrainerCallback

from rewire.integrations.lightning import Rewire
from rewire.integrations.transformers import Rewire as RewireTransformers

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread")]
both_stores = pytest.mark.parametrize("store", ["masked", "packed"])
AVERAGES = {
    "ema": lambda: EMAWeightAveraging(decay=0.8),
    "swa": lambda: WeightAveraging(),
    "without buffers": lambda: EMAWeightAveraging(decay=0.8, use_buffers=False),
}


class Validated(Module):
    """Validation swaps the weights with their average and back."""

    def validation_step(self, batch, index):
        assert_zero_off_mask(self)
        return self.net(batch[0]).sum()


def fit(folder, store, average, epochs=2, first=True, checkpoint=None, module=None):
    rewire_callback = Rewire(METHOD, store=store)
    callbacks = [rewire_callback, average] if first else [average, rewire_callback]
    module = Validated() if module is None else module
    one = trainer(folder, callbacks[0], epochs=epochs, enable_checkpointing=False)
    one.callbacks[:] = [*callbacks, *[c for c in one.callbacks if c not in callbacks]]
    one.fit(module, loader(), loader(), ckpt_path=checkpoint, **({"weights_only": False} if checkpoint else {}))
    return module, rewire_callback.rewirer, one


@both_stores
@pytest.mark.parametrize("kind", list(AVERAGES))
@pytest.mark.parametrize("first", [True, False])
def test_lightnings_averages_have_the_topology_of_the_module(tmp_path, store, kind, first):
    average = AVERAGES[kind]()
    module, rewirer, _ = fit(tmp_path, store, average, first=first)
    assert len(rewirer.history) >= 4
    rewirer.check()
    assert_same_topology(average._average_model, module)
    assert_zero_off_mask(module)  # whose weights are those of the average now
    for mine, theirs in zip(dense(average._average_model.module.net), dense(module.net), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("kind", list(AVERAGES))
def test_both_stores_have_the_same_average_in_lightning(tmp_path, kind):
    nets = [fit(tmp_path, store, AVERAGES[kind]())[0].net for store in ("masked", "packed")]
    assert_same_topology(*nets)
    for one, other in zip(*map(dense, nets), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


@both_stores
@pytest.mark.parametrize("first", [True, False])
def test_a_resumed_average_in_lightning(tmp_path, store, first):
    whole, _, _ = fit(tmp_path, store, AVERAGES["ema"](), epochs=3, first=first)

    class Saving(EMAWeightAveraging):
        def on_train_end(self, trainer, pl_module):
            trainer.save_checkpoint(tmp_path / "one.ckpt")
            super().on_train_end(trainer, pl_module)

    fit(tmp_path, store, Saving(decay=0.8), epochs=1, first=first)
    resumed, rewirer, _ = fit(
        tmp_path, store, AVERAGES["ema"](), epochs=3, first=first, checkpoint=tmp_path / "one.ckpt"
    )
    assert_same_topology(resumed, whole)
    for one, other in zip(dense(resumed.net), dense(whole.net), strict=True):
        assert torch.equal(one, other)
    rewirer.check()


@both_stores
def test_lightnings_older_callback_follows_too(tmp_path, store):
    average = StochasticWeightAveraging(swa_lrs=0.05, swa_epoch_start=1, annealing_epochs=1)
    module, rewirer, _ = fit(tmp_path, store, average, epochs=3)
    rewirer.check()
    assert_zero_off_mask(module)
    assert_same_topology(average._average_model, module)


@both_stores
def test_a_lightning_module_can_be_pickled_and_copied(tmp_path, store):
    module, _, _ = fit(tmp_path, store, AVERAGES["ema"](), epochs=1)
    for one in (pickle.loads(pickle.dumps(module)), copy.deepcopy(module)):
        assert_same_topology(one, module)


class Average(TrainerCallback):
    """Transformers' Trainer has no average of its own; this is how users add one."""

    def on_train_begin(self, args, state, control, model, **kwargs):
        self.average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))

    def on_step_end(self, args, state, control, model, **kwargs):
        self.average.update_parameters(model)
        assert_same_topology(self.average, model)


@both_stores
def test_an_average_in_transformers(tmp_path, store):
    callback, average = RewireTransformers(VIT_METHOD, store=store), Average()
    model = Trainer(model=vit(), args=arguments(tmp_path), train_dataset=Images(), callbacks=[callback, average])
    model.train()
    assert len(callback.rewirer.history) == 3
    callback.rewirer.check()
    assert_zero_off_mask(average.average)
    assert sum(int(mask.sum()) for mask in masks(average.average)) == callback.rewirer.nnz
    for one in (copy.deepcopy(model.model), pickle.loads(pickle.dumps(model.model))):
        one.load_state_dict(model.model.state_dict())
        assert_same_topology(one, model.model)
