"""Interleaved medians: the machine's mood changes slowly, so what is compared is measured in turns."""

import gc
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

Work = Callable[[], object]
WARM = 0.02  # seconds until a work that takes a fraction of a millisecond is as fast as it stays


def interleaved(
    works: dict[str, Work], rounds: int, before: Work = lambda: None, pause: float = 0.0
) -> dict[str, float]:
    """Median seconds of each work; ``before`` is called ahead of every measurement and not timed.

    Threads of one runtime go on spinning for a while and take the core from the next one: with a ``pause`` they come to
    rest. What follows is not timed until the work has run for as long as its threads and caches need to be warm again.
    """
    times: dict[str, list[float]] = {name: [] for name in works}
    for index in range(rounds + 1):
        for name, work in list(works.items())[:: 1 if index % 2 else -1]:  # no work always follows the same one
            before()
            if pause:
                time.sleep(pause)
                warm = time.perf_counter() + WARM
                work()
                while time.perf_counter() < warm:
                    work()
            began = time.perf_counter()
            work()
            if index:  # the first round warms up
                times[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in times.items()}


def in_own_process(function: Callable[[], float]) -> float:
    """What a function returns in a process whose allocator gives every large block back at once.

    An allocator that keeps what was freed, in holes between other blocks, makes a process larger than what is in use.
    """
    large = {"MALLOC_MMAP_THRESHOLD_": str(1 << 16), "MALLOC_TRIM_THRESHOLD_": str(1 << 16)}
    code = f"from {function.__module__} import {function.__name__} as f; print(f())"
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | large, stdout=subprocess.PIPE, check=True)
    return float(done.stdout)


def extra_memory(work: Work) -> int:
    """Bytes by which the process grows at most while ``work`` runs, sampled every half millisecond."""
    gc.collect()
    stop, start = threading.Event(), _resident()
    peak = start

    def watch() -> None:
        nonlocal peak
        while not stop.is_set():
            peak = max(peak, _resident())
            time.sleep(0.0005)

    watcher = threading.Thread(target=watch)
    watcher.start()
    work()
    stop.set()
    watcher.join()
    return peak - start


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
