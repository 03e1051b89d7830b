"""The terminal that all commands print to."""

from typing import NoReturn

from rich.console import Console


class Terminal(Console):
    """A console that lets the command end quietly when the reader of its output has gone, as in ``| head``."""

    def on_broken_pipe(self) -> NoReturn:
        """``main`` ends the command; rich would report a failure."""
        raise BrokenPipeError


console = Terminal()
