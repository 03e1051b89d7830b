"""Hugging Face's Trainer: a small ViT from its configuration, resumed bit for bit, saved as safetensors."""

import json

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForMaskedLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
)

import rewire
from rewire.film.format import read, topology_after
from rewire.integrations import transformers as integration
from rewire.integrations.transformers import Rewire

pytestmark = pytest.mark.filterwarnings("ignore")  # of Transformers, about its own calls of torch
METHOD = rewire.ggr(density=0.2, every=2, until=8)


class Images(Dataset):
    def __init__(self, count=48):
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(count, 1, 8, 8, generator=generator)
        self.y = self.x.flatten(1)[:, :4].argmax(1)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return {"pixel_values": self.x[index], "labels": self.y[index]}


def vit():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    return ViTForImageClassification(ViTConfig(**sizes, image_size=8, patch_size=4, num_channels=1, num_labels=4))


def arguments(folder, **settings):
    options = {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "max_steps": 8,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "save_steps": 4,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "seed": 3,
    }
    return TrainingArguments(output_dir=str(folder), **options | settings)


def train(folder, callback=None, model=None, resume=None, **settings):
    callback = callback or Rewire(METHOD, seed=5)
    trainer = Trainer(
        model=model or vit(), args=arguments(folder, **settings), train_dataset=Images(), callbacks=[callback]
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer, callback


def weights(model):
    return {key: value for key, value in model.state_dict().items() if key != "rewirer"}


def same(a, b):
    a, b = weights(a), weights(b)
    assert a.keys() == b.keys()
    return all(torch.equal(a[key], b[key]) for key in a)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return folder, *train(folder)


def test_a_vit_is_trained_sparse(whole):
    _, trainer, callback = whole
    rewirer = callback.rewirer
    assert rewirer.step == 8  # optimizer steps, not micro-batches
    assert [one.step for one in rewirer.history] == [2, 4, 6]  # at the last one nothing moves: the cosine has ended
    assert rewirer.nnz == round(0.2 * sum(layer.shape.numel() for layer in rewirer.layers))
    assert rewirer.store.optimizer is trainer.optimizer.optimizer  # the one inside Accelerate's
    for layer in rewirer.layers:
        assert not (layer.parameter.ne(0) & ~layer.mask).any()
    assert trainer.evaluate(Images(8))["eval_loss"] > 0
    assert trainer.predict(Images(8)).predictions.shape == (8, 4)


def test_densities_are_logged(whole):
    folder, trainer, callback = whole
    with_them = [line["step"] for line in trainer.state.log_history if "density" in line]
    assert with_them == [1, 2, 4, 6]  # first, and after every rewiring
    name = callback.rewirer.layers[0].name
    saved = json.loads((folder / "checkpoint-8" / "trainer_state.json").read_text())["log_history"]
    assert [line for line in saved if "density" in line][-1][f"density/{name}"] == callback.rewirer.layers[0].density


def test_reporters_are_given_the_densities(tmp_path):
    seen = []

    class Reporter(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            seen.append(dict(logs))

    settings = arguments(tmp_path, max_steps=2)
    trainer = Trainer(model=vit(), args=settings, train_dataset=Images(), callbacks=[Reporter()])
    callback = Rewire(METHOD).attach(trainer)
    trainer.train()
    assert seen[0]["density"] == callback.rewirer.density


@pytest.mark.parametrize("method", [METHOD, rewire.snfs(density=0.2, every=2, until=8)])
def test_a_resumed_training_equals_a_whole_one(tmp_path, whole, method):
    trainer = whole[1] if method is METHOD else train(tmp_path / "whole", Rewire(method, seed=5))[0]
    checkpoint = trainer.args.output_dir + "/checkpoint-4"
    callback = Rewire(method, seed=5)
    resumed, _ = train(tmp_path / "elsewhere", callback, resume=checkpoint)
    assert callback.rewirer.step == 8
    assert len(callback.rewirer.history) == 3
    assert same(resumed.model, trainer.model)


def test_a_second_training_goes_on(tmp_path):
    trainer, callback = train(tmp_path, max_steps=3, save_strategy="no")
    trainer.train()
    assert callback.rewirer.step == 6
    assert [one.step for one in callback.rewirer.history] == [2, 4, 6]


def test_the_best_model_is_loaded_with_its_own_masks(tmp_path):
    trainer = Trainer(
        model=vit(),
        args=arguments(
            tmp_path, load_best_model_at_end=True, eval_strategy="steps", eval_steps=4, metric_for_best_model="density"
        ),
        train_dataset=Images(),
        eval_dataset=Images(8),
        callbacks=[callback := Rewire(METHOD)],
        compute_metrics=lambda _: {"density": -callback.rewirer.step},
    )
    trainer.train()
    saved = load_file(tmp_path / "checkpoint-4" / "model.safetensors")
    assert callback.rewirer.step == 4
    here = {old: weights(trainer.model)[name] for old, name in integration._saved_names(trainer.model).items()}
    assert sum(key.endswith("weight_mask") for key in here) == 12
    assert all(torch.equal(value, saved[key]) for key, value in here.items())


def test_tied_weights_and_masks_are_saved_as_safetensors(tmp_path):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = BertForMaskedLM(BertConfig(vocab_size=40, max_position_embeddings=16, **sizes))

    class Text(Images):
        def __getitem__(self, index):
            words = torch.randint(40, (8,), generator=torch.Generator().manual_seed(index))
            return {"input_ids": words, "labels": words}

    callback = Rewire(METHOD)
    trainer = Trainer(model=model, args=arguments(tmp_path, max_steps=4), train_dataset=Text(), callbacks=[callback])
    trainer.train()
    assert "shared with the embedding bert.embeddings.word_embeddings" in callback.rewirer.left_out.values()
    saved = load_file(tmp_path / "checkpoint-4" / "model.safetensors")
    assert sum(int(mask.sum()) for key, mask in saved.items() if key.endswith("weight_mask")) == callback.rewirer.nnz
    plain = rewire.to_dense(model)
    plain.save_pretrained(tmp_path / "plain")
    again = BertForMaskedLM.from_pretrained(tmp_path / "plain")
    assert not [key for key in plain.state_dict() if "mask" in key or key == "rewirer"]
    words = torch.arange(8)[None]
    assert torch.equal(again.eval()(words).logits, model.eval()(words).logits)


def test_bfloat16_and_compiled(tmp_path):
    _, callback = train(tmp_path, bf16=True, torch_compile=True, torch_compile_backend="aot_eager", max_steps=3)
    assert len(callback.rewirer.history) == 1


def test_the_packed_store_resumes_too(tmp_path):
    trainer, callback = train(tmp_path / "b", Rewire(METHOD, store="packed", seed=5), save_steps=5)
    assert len(callback.rewirer.history) == 3
    resumed, _ = train(
        tmp_path / "c", Rewire(METHOD, store="packed", seed=5), resume=str(tmp_path / "b" / "checkpoint-5")
    )
    assert same(trainer.model, resumed.model)


def test_a_callback_that_comes_too_late_cannot_resume(tmp_path, whole):
    trainer = Trainer(model=vit(), args=arguments(tmp_path), train_dataset=Images())
    trainer.add_callback(Rewire(METHOD))
    with pytest.raises(ValueError, match="resumes at step 4, but no masks were loaded"):
        trainer.train(resume_from_checkpoint=str(whole[0] / "checkpoint-4"))


def test_a_checkpoint_of_another_method_is_refused(tmp_path, whole):
    with pytest.raises(ValueError, match="the checkpoint's method differs"):
        train(tmp_path, Rewire(rewire.rigl(density=0.2, every=2, until=8)), resume=str(whole[0] / "checkpoint-4"))


def test_a_checkpoint_whose_names_cannot_be_translated_is_refused(tmp_path, whole, monkeypatch):
    monkeypatch.setattr(integration, "_saved_names", lambda model: {})
    with pytest.raises(ValueError, match="the checkpoint holds no vit.*weight_mask.*saved under other names"):
        train(tmp_path, resume=str(whole[0] / "checkpoint-4"))


def test_a_model_without_sparse_layers(tmp_path):
    class Empty(nn.Module):
        def forward(self, x):
            return x

    with pytest.raises(ValueError, match="Empty has no Conv or Linear layer"):
        Trainer(model=Empty(), args=arguments(tmp_path), train_dataset=Images(), callbacks=[Rewire(METHOD)])


def test_a_film_is_recorded_and_goes_on_after_resuming(tmp_path):
    train(tmp_path, Rewire(METHOD, seed=5, film=tmp_path / "film"), max_steps=4)
    callback = Rewire(METHOD, seed=5, film=tmp_path / "film")
    train(tmp_path, callback, resume=True, eval_strategy="no")
    lines = read(tmp_path / "film" / "film.rewire")
    assert [line["step"] for line in lines if line["kind"] == "rewiring"] == [2, 4, 6]
    assert [line["step"] for line in lines if line["kind"] == "metrics" and "loss" in line] == list(range(1, 9))
    assert topology_after(lines) == [layer.active().tolist() for layer in callback.rewirer.layers]
