"""Lightning: ``Trainer(callbacks=[Rewire(rewire.ggr(density=0.1, every=100, until=5_000))])``."""

from typing import Any

from rewire.core.method import Method
from rewire.integrations.attachment import Attachment, renew_averages
from rewire.rewirer.rewirer import Rewirer

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise ModuleNotFoundError(
        "this needs lightning, which is not installed: pip install 'rewire[lightning]'"
    ) from error


class Rewire(Callback):
    """Keeps a ``LightningModule`` sparse while a ``Trainer`` fits it, and logs the density of every layer.

    ``options`` are those of ``rewire.sparsify``. ``optimizer``: which of the trainer's optimizers holds the sparse
    weights, where there are several. Masks travel in the module's part of a checkpoint, the rest in the callback's own;
    steps are optimizer steps, counted over all fits.
    """

    def __init__(self, method: Method, *, optimizer: int = 0, **options: Any) -> None:
        self._attachment = Attachment(method, options)
        self._index = optimizer
        self._loaded: dict[str, Any] | None = None
        self._logged = -1  # rewirings when the densities were last logged

    @property
    def rewirer(self) -> Rewirer | None:
        """The rewirer, once there is one: while and after the first fit."""
        return self._attachment.rewirer

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Layers may not exist yet, so the model is made sparse when its weights are loaded, or when fitting begins."""
        self._attachment.watch(pl_module)
        self._attachment.when_sparse = lambda: self._renew_averages(trainer, pl_module)

    def _renew_averages(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Lightning's callbacks for weight averaging have copied the module in their setup."""
        assert self.rewirer is not None
        renew_averages(trainer.callbacks, pl_module, self.rewirer)  # type: ignore[attr-defined]

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The optimizers exist now."""
        if self._index >= len(trainer.optimizers):
            raise ValueError(
                f"Rewire(optimizer={self._index}) asks for an optimizer that the trainer does not have: "
                f"configure_optimizers() made {len(trainer.optimizers)}, and one of them must hold the sparse weights"
            )
        self._attachment.attach(pl_module, trainer.optimizers[self._index])
        self._logged = -1
        self._restore()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Some strategies load checkpoints only now."""
        self._restore()

    def _restore(self) -> None:
        if self._loaded is not None and self.rewirer is not None:
            self.rewirer.load_state_dict(self._loaded)
            self._loaded = None

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Log the densities whenever they may have changed."""
        self._log(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The last rewiring may have been at the last step."""
        self._log(trainer)

    def _log(self, trainer: Trainer) -> None:
        if self.rewirer is None or self._logged == len(self.rewirer.history):
            return
        self._logged = len(self.rewirer.history)
        for logger in trainer.loggers:
            logger.log_metrics(self._attachment.densities(), step=trainer.global_step)

    def state_dict(self) -> dict[str, Any]:
        """The rewirer's part of a checkpoint."""
        return {} if self.rewirer is None else self.rewirer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Lightning has loaded the module by now, but may not have begun to fit it."""
        self._loaded = state_dict
