"""The oldest versions that pyproject.toml allows, as constraints: ``python -m tests.oldest``, for ``make compat``."""

import re
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
LOWER_BOUND = re.compile(r"([\w-]+)>=([\d.]+)(?:,<[\d.]+)?")


def pinned(requirement: str) -> str:
    """A requirement with its lower bound as the version.

    >>> pinned("torch>=2.7,<3")
    'torch==2.7'
    """
    found = LOWER_BOUND.fullmatch(requirement)
    if not found:
        raise ValueError(f"{requirement!r} in pyproject.toml has no lower bound: write it as name>=version")
    return f"{found[1]}=={found[2]}"


def constraints() -> list[str]:
    """What the library and the lab need, each in its oldest version."""
    project = tomllib.loads(PROJECT.read_text())["project"]
    return [pinned(requirement) for requirement in project["dependencies"] + project["optional-dependencies"]["lab"]]


if __name__ == "__main__":
    print("\n".join(constraints()))
