"""The ``rewire`` command. Imports wait until a sub-command runs, so that help is instant."""

import inspect
import shlex
import sys
from collections.abc import Sequence
from typing import TypeVar

import tyro

from rewire._lookup import choose
from rewire.lab.cli.arguments import COMMANDS
from rewire.lab.results import BusyError

T = TypeVar("T")


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse, run, and turn what users can mend into one line without a traceback."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        print(overview())
        return
    try:
        kind = choose("command", words[0], COMMANDS)
        command: object = parse(kind, words)
        from rewire.lab.cli import commands  # imports torch: not before it is needed

        commands.RUN[kind](command, shlex.join(["rewire", *words]))
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on where this one was", file=sys.stderr)
        raise SystemExit(130) from None
    except (ValueError, OSError, ModuleNotFoundError, BusyError) as error:
        print(f"rewire: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def parse(kind: type[T], words: Sequence[str]) -> T:
    """The command that the words ask for; its help shows the whole docstring with the examples."""
    return tyro.cli(
        kind,
        prog=f"rewire {words[0]}",
        description=inspect.cleandoc(kind.__doc__ or ""),
        args=words[1:],
        config=(tyro.conf.FlagCreatePairsOff,),
    )


def overview() -> str:
    """What ``rewire --help`` prints."""
    about = [f"  {name:9}{(kind.__doc__ or '').splitlines()[0]}" for name, kind in COMMANDS.items()]
    return "\n".join(
        [
            "usage: rewire COMMAND [OPTIONS]",
            "",
            "Dynamic sparse training: train, sweep and report the tables and figures of GGR's paper.",
            "",
            *about,
            "",
            "rewire COMMAND --help shows its options and examples. A first look:",
            "",
            "  rewire sweep demo && rewire report runs/demo-demo",
        ]
    )
