"""Plans of small networks of the zoo by every method, as hashes, peaks and seconds.

What changes how plans are found and not which is compared with what was recorded.

``python tests/support/golden_plans.py``             compares with the record;
``python tests/support/golden_plans.py --record``    replaces it.

Graphs have nominal seconds and no scratch of any processor, so that the record is the
same everywhere. Each network comes in several settings: as it is; with tiers to which
tensors may go, fast, slow or full; and with convolutions that have several algorithms.
A method that has taken its seconds on a network is not asked for lower limits.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import memcfg as mc
from memcfg.errors import InfeasiblePlanError, MemcfgError
from memcfg.graph import Algorithm, Graph, Tier
from memcfg.plan import NAMED_POLICIES, POLICIES, share

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from memcfg.plan import Plan

RECORD = Path(__file__).parents[1] / "plan" / "golden_plans.json"
LIMITS = 8  # from the floor of `auto` to the peak of `share`
CAP = 2.0  # processor seconds of a method in a setting of a network
models = mc.models
IMAGE = (32, 32, 3)

NETWORKS: dict[str, tuple[int, Callable[[], mc.nn.Model]]] = {
    "lenet5": (256, lambda: models.lenet5((20, 20, 1))),
    "alexnet": (256, lambda: models.alexnet((63, 63, 3), 5)),
    "lstm_lm": (
        64,
        lambda: models.lstm_lm(1, 12, vocabulary_size=30, sequence_length=5),
    ),
    "bert_encoder": (
        64,
        lambda: models.bert_encoder(
            1, 24, 3, vocabulary_size=30, sequence_length=9, classes=4
        ),
    ),
}
LARGE: dict[str, tuple[int, Callable[[], mc.nn.Model]]] = {  # for `auto` alone
    "vgg16": (128, lambda: models.vgg16(IMAGE, 5)),
    "unet": (16, lambda: models.unet(IMAGE, padding="same")),
    "mobilenet": (64, lambda: models.mobilenet(IMAGE, 5, alpha=0.25)),
}
AUTO = "auto", "auto_algorithms"


def graph_of(name: str) -> Graph:
    """Trace a training step; what depends on the processor is left out."""
    batch, make = (NETWORKS | LARGE)[name]
    model = make()
    model.compile(
        mc.nn.SGD(0.1, momentum=0.9),
        mc.nn.SparseCategoricalCrossentropy(from_logits=True),
    )
    graph = model.graph(batch)
    model.close()
    bare = (replace(op, scratch_bytes=0, algorithms=()) for op in graph.ops)
    return replace(graph, ops=tuple(bare), tiers=())


def with_choices(graph: Graph) -> Graph:
    """Give convolutions a faster algorithm with scratch, and a slower one without."""
    ops = []
    for op in graph.ops:
        if "conv" in op.type:
            out = max(graph.tensors[t].nbytes for t in op.outputs)
            rows = (
                Algorithm("default", op.seconds, out // 2),
                Algorithm("fast", 0.7 * op.seconds, 2 * out),
                Algorithm("slow", 2.0 * op.seconds, 0),
            )
            op = replace(op, scratch_bytes=out // 2, algorithms=rows)
        ops.append(op)
    return replace(graph, ops=tuple(ops))


def with_tiers(graph: Graph, speed: float, part: float | None = None) -> Graph:
    """Let tensors go where lanes move `speed` times the activations in a step.

    With a part, to a host that has so much of them, and then to a slower file.
    """
    moved = sum(t.nbytes for t in graph.tensors if t.role == "activation")
    rate = speed * moved / sum(op.seconds for op in graph.ops)
    tiers = (Tier("host", rate, is_stated=True),)
    if part is not None:
        host = replace(tiers[0], limit_bytes=int(part * moved))
        tiers = (host, Tier("file", rate / 4, is_stated=True))
    return replace(graph, tiers=tiers)


SETTINGS: dict[str, Callable[[Graph], Graph]] = {
    "alone": lambda graph: graph,
    "host": lambda graph: with_tiers(graph, 2.0),
    "slow": lambda graph: with_tiers(graph, 0.2),
    "full": lambda graph: with_tiers(graph, 1.0, 0.1),
    "algorithms": with_choices,
    "all": lambda graph: with_choices(with_tiers(graph, 1.0)),
}
ALL_METHODS = "alone", "all"  # settings in which every method plans
FEWER = "slow", "all"  # those of large networks


def told(make: Callable[[], Plan]) -> list:
    """Return a plan's hash, peak and seconds, or a refusal and what it names."""
    try:
        plan = make()
    except InfeasiblePlanError as error:
        return ["refused", error.smallest_limit_bytes, None]
    except MemcfgError as error:
        return [type(error).__name__, None, None]
    code = hashlib.sha256(repr(plan.actions).encode()).hexdigest()[:10]
    return [code, plan.peak_bytes, plan.elapsed_seconds]


def limits_of(graph: Graph) -> list[int]:
    """Return eight limits, from below the peak of `share` to the floor of `auto`."""
    peak = share()(graph).peak_bytes
    try:
        floor = POLICIES["auto"]()(graph, 1).peak_bytes
    except InfeasiblePlanError as error:
        floor = error.smallest_limit_bytes
    parts = range(LIMITS - 1, -1, -1)
    return [floor + (peak - floor) * part // LIMITS for part in parts]


def rows(
    networks: Iterable[str],
    methods: Collection[str] | None,
    known: Mapping[str, list],
    settings: Collection[str] = tuple(SETTINGS),
) -> Iterator[tuple[str, list, float]]:
    """Plan; yield what was planned, a plan a limit, and the processor seconds.

    Limits that were recorded stay, whatever the floor is now.
    """
    for network in networks:
        bare = graph_of(network)
        for setting, change in SETTINGS.items():
            if setting not in (FEWER if network in LARGE else settings):
                continue
            graph = change(bare)
            key = f"{network} {setting} limits"
            limits = known.get(key) or limits_of(graph)
            yield key, limits, 0.0
            for method, make in NAMED_POLICIES.items():
                if method not in AUTO and (
                    network in LARGE or setting not in ALL_METHODS
                ):
                    continue
                if method == "exact" or (methods is not None and method not in methods):
                    continue
                if "algorithms" in method and setting in ("host", "slow", "full"):
                    continue
                found, spent = [], 0.0
                for limit in limits:
                    if spent > CAP and method not in AUTO:
                        break
                    began = time.process_time()
                    found.append(told(lambda: make()(graph, limit)))  # noqa: B023
                    spent += time.process_time() - began
                yield f"{network} {setting} {method}", found, spent


def short(method: str, found: list) -> list:
    """Shorten what is recorded of a method other than `auto`: a hash of it all."""
    if method in AUTO or method == "limits":
        return found
    return [hashlib.sha256(repr(row).encode()).hexdigest()[:8] for row in found]


def is_worse(now: list, before: list) -> bool:
    """Whether a plan of `auto` is slower, or refused where there was one."""
    if before[2] is None:
        return now[2] is None and (now[1] or 0) > (before[1] or 0)
    return now[2] is None or now[2] > before[2] * (1 + 1e-9)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--networks", default=",".join(NETWORKS | LARGE))
    parser.add_argument("--methods", default=None)
    parser.add_argument("--seconds", type=Path, help="where processor seconds go")
    parser.add_argument("--known", type=Path, default=RECORD)
    parser.add_argument("--output", type=Path, default=RECORD)
    options = parser.parse_args()
    methods = None if options.methods is None else options.methods.split(",")
    known = json.loads(options.known.read_text()) if options.known.exists() else {}
    made: dict[str, list] = {}
    spent: dict[str, float] = {}
    counts = {"same": 0, "other": 0, "better": 0, "worse": 0}
    for key, found, seconds in rows(options.networks.split(","), methods, known):
        method = key.split()[-1]
        made[key], spent[key] = short(method, found), round(seconds, 3)
        before = known.get(key, [])
        for number, (now, then) in enumerate(zip(made[key], before, strict=False)):
            if now == then:
                counts["same"] += 1
                continue
            word = "other"
            if method in AUTO:
                worse, better = is_worse(now, then), is_worse(then, now)
                word = "worse" if worse else "better" if better else "other"
            counts[word] += 1
            if method not in AUTO or word != "other":
                print(f"{word}: {key}, limit {number}: {then} -> {now}", flush=True)
    print(counts, f"{sum(spent.values()):.1f} s")
    if options.seconds:
        options.seconds.write_text(json.dumps(spent, indent=0))
    if options.record:
        lines = (f"{json.dumps(key)}: {json.dumps(row)}" for key, row in made.items())
        options.output.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    return counts["worse"] > 0


if __name__ == "__main__":
    sys.exit(main())
