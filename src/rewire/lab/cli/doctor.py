"""``rewire doctor``: whether everything is there and fits together."""

import json
import textwrap
from dataclasses import asdict
from pathlib import Path

import rewire
from rewire.lab import health
from rewire.lab.cli import arguments as cli

WIDTH = 80


def doctor(command: "cli.Doctor", words: str) -> None:
    """Print the checks; the exit code is 1 if there is a problem."""
    checks = health.checks()
    problems = [check for check in checks if check.state == "problem"]
    if command.json:
        about = {"rewire": rewire.__version__, "folder": str(_folder()), "healthy": not problems}
        print(json.dumps(about | {"checks": [asdict(check) for check in checks]}, indent=2))
    else:
        print(_page(checks))
    if problems:
        raise SystemExit(1)


def _folder() -> Path:
    return Path(rewire.__file__).parent


def _page(checks: list[health.Check]) -> str:
    width = max(len(check.name) for check in checks) + 2
    lines = [f"rewire {rewire.__version__}", *_wrapped(str(_folder()), "  "), ""]
    for check in checks:
        margin = f"  {check.state:9}{check.name:{width}}"
        lines += _wrapped(check.text, margin)
        if check.fix:
            lines += _wrapped(f"-> {check.fix}", " " * len(margin), " " * (len(margin) + 3))
    problems = sum(check.state == "problem" for check in checks)
    if problems:
        verdict = f"{problems} problem{'s' if problems > 1 else ''}: follow the arrows above."
    elif any(check.state == "missing" for check in checks):
        verdict = "All that Rewire needs is there. What is missing is optional."
    else:
        verdict = "All is there."
    return "\n".join([*lines, "", verdict])


def _wrapped(text: str, first: str, rest: str | None = None) -> list[str]:
    """Lines of at most 80 columns; words that are longer, such as paths, are cut."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=" " * len(first) if rest is None else rest,
        break_on_hyphens=False,
    )
