"""Lightning: ``Trainer(callbacks=[Rewire(rewire.ggr(density=0.1, every=100, until=5_000))])``."""

from collections.abc import Sequence
from pathlib import Path
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
    """Makes a ``LightningModule`` sparse, rewires it while a ``Trainer`` fits it, and logs the densities of its layers.

    ``options`` are those of ``rewire.sparsify``. ``optimizer``: the index of the optimizer that has the sparse weights,
    if the trainer has several, or a list of indices if the sparse weights are divided among them. ``film``: a
    folder in which the rewirings are recorded, with the metrics that the module logs, for ``rewire watch``. In a
    checkpoint, the masks are part of the module's state and the rest is the state of this callback. Steps are optimizer
    steps, counted over all fits.
    """

    def __init__(
        self,
        method: Method,
        *,
        optimizer: int | Sequence[int] = 0,
        film: str | Path | None = None,
        **options: Any,
    ) -> None:
        self._attachment = Attachment(method, options, film)
        self._indices = [optimizer] if isinstance(optimizer, int) else list(optimizer)
        if not self._indices or not all(isinstance(index, int) and index >= 0 for index in self._indices):
            raise ValueError(
                f"optimizer= is an index in what configure_optimizers() returns, or a list of them, not {optimizer!r}"
            )
        self._loaded: dict[str, Any] | None = None
        self._logged = -1  # rewirings when the densities were last logged

    @property
    def rewirer(self) -> Rewirer | None:
        """The rewirer; ``None`` before the first fit."""
        return self._attachment.rewirer

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Make the model sparse as soon as weights with masks are loaded: its layers may not exist yet."""
        self._attachment.watch(pl_module)
        self._attachment.when_sparse = lambda: self._renew_averages(trainer, pl_module)

    def _renew_averages(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Lightning's callbacks for weight averaging have copied the module in their setup."""
        assert self.rewirer is not None
        renew_averages(trainer.callbacks, pl_module, self.rewirer)  # type: ignore[attr-defined]

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attach to the optimizers, which exist now, and load the rewirer's state."""
        missing = [index for index in self._indices if index >= len(trainer.optimizers)]
        if missing:
            raise ValueError(
                f"Rewire(optimizer={missing[0]}) asks for an optimizer that the trainer does not have: "
                f"configure_optimizers() made {len(trainer.optimizers)}, and one of them must hold the sparse weights"
            )
        self._attachment.attach(pl_module, [trainer.optimizers[index] for index in self._indices])
        self._logged = -1
        self._restore()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Load the rewirer's state: some strategies load checkpoints only now. Then the film can begin."""
        self._restore()
        self._attachment.start_film()

    def _restore(self) -> None:
        if self._loaded is not None and self.rewirer is not None:
            self.rewirer.load_state_dict(self._loaded)
            self._loaded = None

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Log the densities if there was a rewiring."""
        self._log(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the densities after a rewiring at the last step."""
        self._log(trainer)
        self._attachment.stop_film()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """End the film; it is whole up to the last rewiring."""
        self._attachment.stop_film()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Add the epoch's metrics to the film."""
        self._attachment.log_to_film(_scalars(trainer))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Add the metrics of a validation within an epoch to the film."""
        if not trainer.sanity_checking:
            self._attachment.log_to_film(_scalars(trainer))

    def _log(self, trainer: Trainer) -> None:
        if self.rewirer is None or self._logged == len(self.rewirer.history):
            return
        self._logged = len(self.rewirer.history)
        for logger in trainer.loggers:
            logger.log_metrics(self._attachment.densities(), step=trainer.global_step)

    def state_dict(self) -> dict[str, Any]:
        """The rewirer's state, for the trainer's checkpoint."""
        return {} if self.rewirer is None else self.rewirer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the rewirer's state until there is a rewirer: Lightning calls this before fitting begins."""
        self._loaded = state_dict


def _scalars(trainer: Trainer) -> dict[str, float]:
    """What the module has logged, as numbers."""
    return {name: float(value) for name, value in trainer.callback_metrics.items() if value.numel() == 1}
