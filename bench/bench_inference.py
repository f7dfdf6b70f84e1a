"""Compare the modes of ParallelInference: requests a second, and a lone request's time.

Threads send requests of one sample to one worker as fast as they get the outputs. The
modes take turns in one process, so that a busy machine slows all of them down. A lone
request is compared with `predict_on_batch`, alternating with it. Times are written and
not asserted.

What was expected: a sample costs a fifth in a batch of 16 of what it costs alone, and
the change of threads some 15 microseconds in any mode, so batches answer three times as
many requests.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from pathlib import Path

import numpy as np
from machine import facts

import memcfg as mc
from memcfg.parallel import ParallelInference

MODES = ("sequential", "inplace", "batched")


def throughput(
    inference: ParallelInference, x: np.ndarray, threads: int, requests: int
) -> tuple[float, float]:
    """Return the requests answered in a second, and the processor seconds of each."""
    start = threading.Barrier(threads + 1)

    def ask() -> None:
        start.wait()
        for _ in range(requests // threads):
            inference.output(x)

    callers = [threading.Thread(target=ask) for _ in range(threads)]
    for caller in callers:
        caller.start()
    start.wait()
    began, used = time.perf_counter(), time.process_time()
    for caller in callers:
        caller.join()
    count = requests // threads * threads
    used = time.process_time() - used
    return count / (time.perf_counter() - began), used / count


def lone(
    inference: ParallelInference, model: mc.nn.Model, x: np.ndarray, calls: int
) -> tuple[float, float]:
    """Return the median seconds of a lone request, and of `predict_on_batch`."""
    taken: tuple[list[float], list[float]] = ([], [])
    for _ in range(calls):
        for seconds, call in zip(
            taken, (inference.output, model.predict_on_batch), strict=True
        ):
            call(x)
            began = time.perf_counter()
            call(x)
            seconds.append(time.perf_counter() - began)
    return statistics.median(taken[0]), statistics.median(taken[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=3_000)
    parser.add_argument("--output", type=Path, help="a folder for inference.json")
    options = parser.parse_args()
    model = mc.models.lenet5()
    x = np.random.default_rng(0).random((1, *model.input_shape[1:]), np.float32)
    workers = {mode: ParallelInference(model, mode) for mode in MODES}
    rates: dict[str, list[float]] = {mode: [] for mode in MODES}
    used: dict[str, list[float]] = {mode: [] for mode in MODES}
    for _ in range(options.rounds):
        for mode in MODES:
            given = workers[mode], x, options.threads, options.requests
            rate, seconds = throughput(*given)
            rates[mode].append(rate)
            used[mode].append(seconds)
    cases = []
    for mode in MODES:
        stats = workers[mode].stats()
        seconds, plain = lone(workers[mode], model, x, options.calls)
        pairs = zip(rates[mode], rates["sequential"], strict=True)
        cases.append(
            {
                "mode": mode,
                "requests_a_second": statistics.median(rates[mode]),
                "times_sequential": statistics.median(a / b for a, b in pairs),
                "processor_seconds": statistics.median(used[mode]),
                "samples_a_batch": stats.samples / sum(stats.batches),
                "padding": stats.padding / (stats.samples + stats.padding),
                "lone_seconds": seconds,
                "times_predict_on_batch": seconds / plain,
            }
        )
        workers[mode].close()
        print(json.dumps(cases[-1]), flush=True)
    if options.output is not None:
        machine = facts() | {
            "network": "lenet5",
            "threads": options.threads,
            "requests": options.requests,
            "rounds": options.rounds,
        }
        text = json.dumps({"environment": machine, "cases": cases}, indent=2)
        (options.output / "inference.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
