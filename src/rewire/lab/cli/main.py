"""The ``rewire`` command. torch is imported when a sub-command runs, so that help appears at once."""

import inspect
import os
import shlex
import sys
import textwrap
from collections.abc import Sequence
from importlib import import_module
from typing import TypeVar

import tyro

import rewire
from rewire._lookup import choose
from rewire.lab.cli import arguments as cli
from rewire.lab.results import BusyError

T = TypeVar("T")

# Each sub-command: its arguments, and the module whose function of the same name carries it out.
COMMANDS: dict[str, tuple[type, str]] = {
    "train": (cli.Train, "training"),
    "sweep": (cli.Sweep, "sweeping"),
    "report": (cli.Report, "reporting"),
    "collect": (cli.Collect, "reporting"),
    "repeat": (cli.Repeat, "repeating"),
    "runs": (cli.Runs, "reporting"),
    "watch": (cli.Watch, "watching"),
    "inspect": (cli.Inspect, "inspecting"),
    "shrink": (cli.Shrink, "shipping"),
    "export": (cli.Export, "shipping"),
    "pack": (cli.Pack, "benching"),
    "bench": (cli.Bench, "benching"),
    "data": (cli.Data, "listing"),
    "methods": (cli.Methods, "listing"),
    "models": (cli.Models, "listing"),
    "experiments": (cli.Experiments, "listing"),
    "doctor": (cli.Doctor, "doctor"),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse and run. An error that the user can fix is one line without a traceback."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        _run(words)
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("\nstopped; the same command continues from the last checkpoint", file=sys.stderr)
        raise SystemExit(130) from None
    except BrokenPipeError:  # the reader has seen enough, as in `rewire report runs | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python would complain when it flushes
        raise SystemExit(0) from None
    except (ValueError, OSError, ModuleNotFoundError, BusyError) as error:
        print(f"rewire: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def _run(words: list[str]) -> None:
    if not words or words[0] in ("-h", "--help"):
        print(overview())
    elif words[0] in ("-V", "--version"):
        print(f"rewire {rewire.__version__}")
    else:
        kind, module = choose("command", words[0], COMMANDS)
        command: object = parse(kind, words)
        function = getattr(import_module(f"rewire.lab.cli.{module}"), words[0])
        function(command, shlex.join(["rewire", *words]))


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
    width = max(map(len, COMMANDS)) + 2
    about = []
    for name, (kind, _) in COMMANDS.items():
        lines = textwrap.wrap((kind.__doc__ or "").splitlines()[0], 78 - width)
        about += [f"  {name if i == 0 else '':{width}}{line}" for i, line in enumerate(lines)]
    return "\n".join(
        [
            "usage: rewire COMMAND [OPTIONS]",
            "",
            "Dynamic sparse training: train networks, carry out experiments, report them.",
            "",
            *about,
            "",
            "rewire COMMAND --help shows options and examples; rewire --version the version.",
            "A first look:",
            "",
            "  rewire sweep demo && rewire report runs/demo-demo",
        ]
    )
