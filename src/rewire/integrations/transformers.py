"""Hugging Face Transformers: ``Trainer(..., callbacks=[Rewire(rewire.ggr(density=0.1, every=100, until=5_000))])``."""

import io
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rewire.core.method import Method
from rewire.integrations.attachment import Attachment, ModelHook
from rewire.model.state_names import topology_names
from rewire.rewirer.rewirer import Rewirer

try:
    from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ImportError as error:
    raise ModuleNotFoundError(
        "this needs transformers, which is not installed: pip install 'rewire[transformers]'"
    ) from error

KEY = "rewirer"  # the entry of the model's state_dict that holds the rewirer's state


class Rewire(TrainerCallback):
    """Makes a model sparse, rewires it while a ``Trainer`` trains it, and logs the densities of its layers.

    ``options`` are those of ``rewire.sparsify``. ``film``: a folder in which the rewirings are recorded, with losses
    and evaluations, for ``rewire watch``. The model is sparse as soon as the trainer is built. Masks and the rewirer's
    state are saved among the model's weights, because a trainer that resumes always loads these. Steps are
    optimizer steps, counted over all trainings.
    """

    def __init__(self, method: Method, *, film: str | Path | None = None, **options: Any) -> None:
        self._attachment = Attachment(method, options, film)
        self._model: nn.Module | None = None  # the model whose state_dict includes the rewirer's state
        self._pending: Tensor | None = None  # the rewirer's state in the checkpoint that is being loaded
        self._restored = False  # whether a checkpoint was loaded since the last training began
        self._logged = -1  # the number of rewirings when the densities were last logged

    @property
    def rewirer(self) -> Rewirer | None:
        """The rewirer; ``None`` before the trainer is built."""
        return self._attachment.rewirer

    def attach(self, trainer: Trainer) -> "Rewire":
        """Add this callback to a trainer before its other callbacks, so that all of its reporters get the densities.

        Passed as ``callbacks=[...]`` it comes after the trainer's own reporters. Then the densities are in the
        trainer's history, in what it prints, and in reporters that come later in the list.
        """
        trainer.callback_handler.callbacks.insert(0, self)
        self.on_init_end(trainer.args, trainer.state, trainer.control, model=trainer.model)
        return self

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Make the model sparse: its masks must exist before a checkpoint is loaded. There is no optimizer yet."""
        self._attachment.prepare(kwargs["model"])
        self._add_state_to(kwargs["model"])

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Attach to the optimizer, which exists now; if training resumes, the checkpoint has been loaded."""
        model, optimizer = kwargs["model"], kwargs.get("optimizer")
        if optimizer is None:
            raise ValueError("the trainer has no optimizer, so nothing can be rewired")
        if state.global_step > 0 and not (self._restored and self._attachment.is_attached_to(model)):
            raise ValueError(
                f"training resumes at step {state.global_step}, but no masks were loaded: either the checkpoint is of "
                "a training without Rewire, or the callback came too late. Give it to the trainer when that is built "
                "(callbacks=[...]), with a model and not with model_init"
            )
        self._attachment.attach(model, optimizer)
        self._add_state_to(model)
        self._restored, self._logged = False, -1
        self._attachment.start_film()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """End the film."""
        self._attachment.stop_film()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Add the densities to the first log of a training and to the first log after each rewiring."""
        self._attachment.log_to_film(_metrics(logs or {}))
        if logs is None or self.rewirer is None or self._logged == len(self.rewirer.history):
            return
        self._logged = len(self.rewirer.history)
        logs.update(self._attachment.densities())
        if state.log_history:
            state.log_history[-1].update(self._attachment.densities())

    def _add_state_to(self, model: nn.Module) -> None:
        """Make the model's ``state_dict`` include the rewirer's state, and load it from there."""
        if self._model is model:
            return
        self._model = model

        def after_saving(module: nn.Module, state: dict[str, Any], prefix: str, _metadata: object) -> None:
            if module is self._model and self.rewirer is not None and not self.rewirer.removed:
                state[prefix + KEY] = _to_bytes(self.rewirer.state_dict())

        def before_loading(module: nn.Module, state: dict[str, Any], prefix: str, *_: object) -> None:
            self._pending = state.get(prefix + KEY)
            if module is self._model and self._pending is not None:
                for saved, name in _saved_names(module).items():
                    if saved in state and name not in state:
                        state[name] = state.pop(saved)

        def after_loading(module: nn.Module, keys: Any) -> None:
            if module is self._model and self._pending is not None and self.rewirer is not None:
                _refuse_missing_masks(module, keys.missing_keys)
                self.rewirer.load_state_dict(_from_bytes(self._pending))
                self._restored, self._pending = True, None

        model.register_state_dict_post_hook(ModelHook(model, after_saving))
        model.register_load_state_dict_pre_hook(ModelHook(model, before_loading))
        model.register_load_state_dict_pre_hook(_leave_rewirer_out)
        model.register_load_state_dict_post_hook(ModelHook(model, after_loading))


def _metrics(logs: dict[str, float]) -> dict[str, float]:
    """The loss and the results of evaluations among what a trainer logs; not how long they took."""
    timing = ("_runtime", "_per_second")
    return {
        name: value
        for name, value in logs.items()
        if name == "loss" or (name.startswith("eval_") and not name.endswith(timing))
    }


def _leave_rewirer_out(module: nn.Module, state: dict[str, Any], prefix: str, *_: object) -> None:
    """The model, and every copy of it, can load a state_dict with the rewirer's state in it."""
    state.pop(prefix + KEY, None)


def _saved_names(model: nn.Module) -> dict[str, str]:
    """The names in a checkpoint that differ from the model's own, mapped to the model's.

    Transformers saves some networks (ViT) under the names of their first publication. Its trainer does not translate
    them when it resumes and would continue with weights that were never loaded.
    """
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:  # versions that do not rename
        return {}
    state = dict(model.state_dict())
    names = {id(tensor): name for name, tensor in state.items()}
    saved = revert_weight_conversion(model, state)  # type: ignore[arg-type]
    return {name: names[id(tensor)] for name, tensor in saved.items() if names.get(id(tensor), name) != name}


def _refuse_missing_masks(model: nn.Module, missing: list[str]) -> None:
    topology = topology_names(model.state_dict())
    masks = [name for name in missing if name in topology]
    if masks:
        raise ValueError(
            f"the checkpoint holds no {', '.join(masks)}: it was saved under other names, or of another model, and the "
            "weights of these layers were not loaded either"
        )


def _to_bytes(state: dict[str, Any]) -> Tensor:
    """A state as a tensor of bytes, for file formats that hold only tensors."""
    file = io.BytesIO()
    torch.save(state, file)
    return torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)


def _from_bytes(content: Tensor) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(io.BytesIO(content.cpu().numpy().tobytes()), weights_only=True)
    return state
