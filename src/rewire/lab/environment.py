"""Versions and hardware, which a result depends on besides its run."""

import functools
import platform
import subprocess
from pathlib import Path

import torch

import rewire
from rewire.kernels import info


def environment(device: str, ranks: int = 1) -> dict[str, str | int]:
    """Versions, the commit of the code, processor, instruction set, threads and device, as plain data."""
    optional: dict[str, str | int] = {"ranks": ranks} if ranks > 1 else {}
    if commit := code_commit():
        optional["commit"] = commit
    return optional | {
        "rewire": rewire.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.system(),
        "cpu": _processor(),
        "kernels": str(info()["isa"]),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else device,
    }


@functools.cache
def code_commit(file: Path = Path(__file__)) -> str | None:
    """The commit of this checkout, with ``-dirty`` if files were changed since; none where the package is installed."""

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", file.parent, *words], capture_output=True, text=True, check=True).stdout

    try:
        # An installed package may lie in the checkout of another project, which does not track it.
        git("ls-files", "--error-unmatch", file.name)
        return git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*").strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
