"""Versions and hardware, which a result depends on besides its run."""

import platform
from pathlib import Path

import torch

import rewire


def environment(device: str, ranks: int = 1) -> dict[str, str | int]:
    """Versions, processor, threads and device, as plain data."""
    together: dict[str, str | int] = {"ranks": ranks} if ranks > 1 else {}
    return together | {
        "rewire": rewire.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.system(),
        "cpu": _processor(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else device,
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
