"""Measure Capuchin in a model: what tracking costs, and what its steps take.

*Tracking* is what makes the first steps known: the loop reads a clock behind each
instruction and keeps the least seconds. Steps of one program, by `share`, are run in
turns with it and without; the ratio is that of the fastest turns, since whatever else
runs slows others by more than tracking. The paper has less than 2 percent. Ops of 4
microseconds, as of LeNet-300-100 at batch 1, are the worst case.

*Adaptation* trains within a limit, with copies to the host's memory over a lane that is
throttled: the passive first step, the plan that is made of it, and the plan that stays,
beside steps by `share` without a limit in the same process.

One thread computes. ``taskset -c 0,1 chrt -f 50 python bench capuchin`` keeps
other work away. Asserts that the last plan's peak is the predicted one, and no time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

from bench_codecs import environment

import memcfg as mc
from memcfg.commands._tasks import Task
from memcfg.plan import capuchin, share

TASKS = {
    "resnet18, 16 of 64 x 64": Task("resnet18", 16, {"input_shape": (64, 64, 3)}),
    "mobilenet, 16 of 96 x 96": Task("mobilenet", 16, {"input_shape": (96, 96, 3)}),
    "bert_encoder, 4 of 64": Task(
        "bert_encoder",
        4,
        {
            "layers": 4,
            "hidden": 256,
            "heads": 4,
            "vocabulary_size": 1000,
            "sequence_length": 64,
        },
    ),
    "lenet_300_100, 64": Task("lenet_300_100", 64),
    "lenet_300_100, 1": Task("lenet_300_100", 1),
}
ADAPTED = tuple(TASKS)[:3]
MOST = 64  # steps until a plan stays


def tracking(name: str, options: argparse.Namespace) -> dict:
    """Time steps with tracking and without, in turns."""
    task = TASKS[name]
    model = task.model(share())
    x, y = task.data(model)
    model.train_on_batch(x, y)
    (label,) = model._session.executor.plans
    program = model._session.executor.prepare(label)
    least, count = 0.0, 1
    while least < options.seconds:  # so many steps a turn
        count *= 2 if least else 1
        began = time.perf_counter()
        for _ in range(count):
            program.run(guard=True)
        least = time.perf_counter() - began
    taken: dict[str, list[float]] = {"plain": [], "tracked": []}
    for turn in range(2 * options.repeats):
        for kind in sorted(taken, reverse=turn % 2 == 1):
            program._untimed = (count + 1) * (kind == "tracked")
            began = time.perf_counter()
            for _ in range(count):
                program.run(guard=True)
            taken[kind].append((time.perf_counter() - began) / count)
    program._untimed, program.due = 0, False
    instructions = len(program._loop)
    del program
    model.close()
    plain, tracked = (min(taken[kind]) for kind in ("plain", "tracked"))
    found = {
        "kind": "tracking",
        "network": name,
        "instructions": instructions,
        "steps_a_turn": count,
        "plain_seconds": plain,
        "tracked_seconds": tracked,
        "ratio": tracked / plain,
        "by_turn": taken,
    }
    print(
        f"{name:>26}: {instructions} instructions, {plain * 1e3:.3f} ms a step, "
        f"tracked {found['ratio']:.4f} times that",
        flush=True,
    )
    return found


def configure(limit: int | None, options: argparse.Namespace) -> None:
    mc.config.reset()
    mc.config.threading.set_intra_op_parallelism_threads(1)
    if limit is not None:
        (cpu,) = mc.config.list_physical_devices("CPU")
        device = mc.config.LogicalDeviceConfiguration(
            memory_limit=f"{limit}B", spill_to="host", lane_bandwidth=options.bandwidth
        )
        mc.config.set_logical_device_configuration(cpu, [device])


def step(model, x, y) -> float:
    began = time.perf_counter()
    model.train_on_batch(x, y)
    return time.perf_counter() - began


def adaptation(name: str, share_: int, options: argparse.Namespace) -> dict:
    """Train until a plan stays, and then as many steps as by `share`."""
    task = TASKS[name]
    configure(None, options)
    plain = task.model(share())
    x, y = task.data(plain)
    step(plain, x, y)
    unlimited = statistics.median(step(plain, x, y) for _ in range(options.steps))
    plan = plain.memory_plan
    plain.close()
    graph = task.graph()
    state = sum(graph.tensors[t].nbytes for t in graph.persistent)
    limit = state + (plan.peak_bytes - state) * share_ // 100
    configure(limit, options)
    model = Task(task.network, task.batch, task.arguments, "measured").model(capuchin())
    plans = []
    steps = 0
    while not plans or plans[-1].summary.recosted is None:
        assert steps < MOST
        model.train_on_batch(x, y)
        steps += 1
        if not plans or model.memory_plan is not plans[-1]:
            plans.append(model.memory_plan)
    report = model.memory_report(verify=True)
    assert report.measured_peak_bytes == report.predicted_peak_bytes <= limit
    stays = statistics.median(step(model, x, y) for _ in range(options.steps))
    tried = [took for _, took in plans[-1].summary.recosted.tried]
    settled = plans[-1].predicted
    model.close()
    found = {
        "kind": "adaptation",
        "network": name,
        "share_percent": share_,
        "limit_bytes": limit,
        "peak_bytes": report.measured_peak_bytes,
        "steps": steps,
        "plans": len(tried),
        "unlimited_seconds": unlimited,
        "passive_seconds": tried[0],
        "guided_seconds": tried[1],
        "best_seconds": min(tried),
        "settled_seconds": stays,
        "moved_bytes": settled.moved_bytes,
        "recompute_seconds": settled.recompute_seconds,
        "tried_seconds": tried,
    }
    print(
        f"{name:>26} at {share_} %: unlimited {unlimited * 1e3:.1f} ms, passive "
        f"{tried[0] / unlimited:.2f} times that, guided {tried[1] / unlimited:.2f}, at "
        f"last {stays / unlimited:.2f}; {len(tried)} plans in {steps} steps",
        flush=True,
    )
    return found


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=15, help="half as many turns")
    parser.add_argument("--seconds", type=float, default=0.2, help="length of a turn")
    parser.add_argument("--steps", type=int, default=9, help="steps of a median")
    parser.add_argument("--bandwidth", default="1GB", help="bytes a second of a lane")
    parser.add_argument("--output", type=Path, help="write the results there, as JSON")
    options = parser.parse_args()
    options.clock = "wall"
    return options


def _rounded(value):
    """Return results with numbers of five digits."""
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def main() -> None:
    options = parse()
    configure(None, options)
    place = environment(options)
    place["lane_bandwidth"] = options.bandwidth
    results = [tracking(name, options) for name in TASKS]
    for name in ADAPTED:
        results += [adaptation(name, each, options) for each in (80, 50)]
    if options.output:
        document = {"environment": place, "results": _rounded(results)}
        text = json.dumps(document, indent=1)
        options.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
