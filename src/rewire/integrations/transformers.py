"""Hugging Face Transformers: ``Trainer(..., callbacks=[Rewire(rewire.ggr(density=0.1, every=100, until=5_000))])``."""

import io
from typing import Any

import torch
from torch import Tensor, nn

from rewire.core.method import Method
from rewire.integrations.attachment import Attachment, ModelHook
from rewire.model.state_names import MASK, POSITIONS
from rewire.rewirer.rewirer import Rewirer

try:
    from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ImportError as error:
    raise ModuleNotFoundError(
        "this needs transformers, which is not installed: pip install 'rewire[transformers]'"
    ) from error

KEY = "rewirer"  # in the model's state_dict, beside the masks


class Rewire(TrainerCallback):
    """Keeps a model sparse while a ``Trainer`` trains it, and logs the density of every layer.

    ``options`` are those of ``rewire.sparsify``. The model is sparse as soon as the trainer is built. A trainer's
    checkpoint holds the masks and the rewirer's state among the model's weights, because that is what every trainer
    loads when it resumes, wherever the checkpoint lies. Steps are optimizer steps, counted over all trainings.
    """

    def __init__(self, method: Method, **options: Any) -> None:
        self._attachment = Attachment(method, options)
        self._carried: nn.Module | None = None  # the model whose checkpoints hold the rewirer's state
        self._pending: Tensor | None = None
        self._restored = False  # whether a checkpoint's state was loaded since the last training began
        self._logged = -1  # rewirings when the densities were last logged

    @property
    def rewirer(self) -> Rewirer | None:
        """The rewirer, as soon as the trainer is built."""
        return self._attachment.rewirer

    def attach(self, trainer: Trainer) -> "Rewire":
        """Join a trainer in front of its other callbacks, so that all its reporters are given the densities.

        Given as ``callbacks=[...]``, it comes after them: then densities are in the trainer's history, in what it
        prints, and in reporters that follow in the list.
        """
        trainer.callback_handler.callbacks.insert(0, self)
        self.on_init_end(trainer.args, trainer.state, trainer.control, model=trainer.model)
        return self

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Masks must exist before a checkpoint is loaded; there is no optimizer yet."""
        self._attachment.prepare(kwargs["model"])
        self._carry(kwargs["model"])

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The optimizer exists now, and what a checkpoint holds is loaded."""
        model, optimizer = kwargs["model"], kwargs.get("optimizer")
        if optimizer is None:
            raise ValueError("the trainer has no optimizer, so nothing can be rewired")
        if state.global_step > 0 and not (self._restored and self._attachment.holds(model)):
            raise ValueError(
                f"training resumes at step {state.global_step}, but no masks were loaded: either the checkpoint is of "
                "a training without Rewire, or the callback came too late. Give it to the trainer when that is built "
                "(callbacks=[...]), with a model and not with model_init"
            )
        self._attachment.attach(model, optimizer)
        self._carry(model)
        self._restored, self._logged = False, -1

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Add the densities to what is logged first, and to whatever is logged after a rewiring."""
        if logs is None or self.rewirer is None or self._logged == len(self.rewirer.history):
            return
        self._logged = len(self.rewirer.history)
        logs.update(self._attachment.densities())
        if state.log_history:
            state.log_history[-1].update(self._attachment.densities())

    def _carry(self, model: nn.Module) -> None:
        """Let the model's state_dict hold the rewirer's state too."""
        if self._carried is model:
            return
        self._carried = model

        def saving(module: nn.Module, state: dict[str, Any], prefix: str, _metadata: object) -> None:
            if module is self._carried and self.rewirer is not None and not self.rewirer.removed:
                state[prefix + KEY] = _to_bytes(self.rewirer.state_dict())

        def before_loading(module: nn.Module, state: dict[str, Any], prefix: str, *_: object) -> None:
            self._pending = state.get(prefix + KEY)
            if module is self._carried and self._pending is not None:
                for saved, name in _saved_names(module).items():
                    if saved in state and name not in state:
                        state[name] = state.pop(saved)

        def after_loading(module: nn.Module, keys: Any) -> None:
            if module is self._carried and self._pending is not None and self.rewirer is not None:
                _refuse_missing_masks(keys.missing_keys)
                self.rewirer.load_state_dict(_from_bytes(self._pending))
                self._restored, self._pending = True, None

        model.register_state_dict_post_hook(ModelHook(model, saving))
        model.register_load_state_dict_pre_hook(ModelHook(model, before_loading))
        model.register_load_state_dict_pre_hook(_leave_rewirer_out)
        model.register_load_state_dict_post_hook(ModelHook(model, after_loading))


def _leave_rewirer_out(module: nn.Module, state: dict[str, Any], prefix: str, *_: object) -> None:
    """The model, and every copy of it, can load a state_dict with the rewirer's state in it."""
    state.pop(prefix + KEY, None)


def _saved_names(model: nn.Module) -> dict[str, str]:
    """Under which names a checkpoint holds what the model calls otherwise, where the two differ.

    Transformers saves some networks (ViT) under the names of their first publication. Its trainer forgets to translate
    them when it resumes, and would go on with weights that were never loaded.
    """
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:  # versions without such names
        return {}
    here = dict(model.state_dict())
    names = {id(tensor): name for name, tensor in here.items()}
    saved = revert_weight_conversion(model, here)  # type: ignore[arg-type]
    return {name: names[id(tensor)] for name, tensor in saved.items() if names.get(id(tensor), name) != name}


def _refuse_missing_masks(missing: list[str]) -> None:
    masks = [name for name in missing if name.endswith((MASK, POSITIONS))]
    if masks:
        raise ValueError(
            f"the checkpoint holds no {', '.join(masks)}: it was saved under other names, or of another model, and the "
            "weights of these layers were not loaded either"
        )


def _to_bytes(state: dict[str, Any]) -> Tensor:
    """As a tensor, for the formats that hold nothing else."""
    file = io.BytesIO()
    torch.save(state, file)
    return torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)


def _from_bytes(content: Tensor) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(io.BytesIO(content.cpu().numpy().tobytes()), weights_only=True)
    return found
