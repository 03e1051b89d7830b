"""Times and memory. What is compared is measured in turns, because the speed of a shared machine drifts slowly."""

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
WARM = 0.02  # seconds of warm-up before something that takes a fraction of a millisecond is timed


def interleaved(
    works: dict[str, Work], rounds: int, before: Work = lambda: None, pause: float = 0.0
) -> dict[str, float]:
    """Median seconds of each work, measured in turns. ``before`` is called before every measurement and not timed.

    Threads of one runtime keep spinning for a while after a call and slow down the next runtime: a ``pause`` (seconds)
    lets them stop. After a pause each work runs untimed for ``WARM`` seconds, until threads and caches are warm again.
    """
    times: dict[str, list[float]] = {name: [] for name in works}
    for index in range(rounds + 1):
        for name, work in list(works.items())[:: 1 if index % 2 else -1]:  # no work always follows the same one
            before()
            if pause:
                time.sleep(pause)
                warm_until = time.perf_counter() + WARM
                work()
                while time.perf_counter() < warm_until:
                    work()
            start = time.perf_counter()
            work()
            if index:  # the first round warms up
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def in_own_process(function: Callable[[], float]) -> float:
    """What a function returns in a process whose allocator returns every large block to the system at once.

    Otherwise freed blocks stay in the process, which is then larger than the memory in use.
    """
    allocator = {"MALLOC_MMAP_THRESHOLD_": str(1 << 16), "MALLOC_TRIM_THRESHOLD_": str(1 << 16)}
    code = f"from {function.__module__} import {function.__name__} as f; print(f())"
    process = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | allocator, stdout=subprocess.PIPE, check=True
    )
    return float(process.stdout)


def extra_memory(work: Work) -> int:
    """The largest growth of the process in bytes while ``work`` runs, sampled every half millisecond."""
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
