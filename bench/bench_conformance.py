"""Put models of timm, transformers, torchvision, diffusers and own under budgets.

Each model trains in a process of its own, forked after imports, with a time limit. Its
step in eager PyTorch is measured, estimated, and run within 100, 70 and 50 % of eager's
peak and at the floor. Configurations are small and random, and nothing is downloaded.

``python bench conformance --output bench/results/conformance.json`` makes the results,
in the environment of ``tox run -e parity``; ``python bench/tables`` their table. A
result file that exists is continued, unless ``--again`` names models to measure anew;
each result has its processor.

Bytes are those of all tensors of a step, counted by the pool of `limit_cpu`: the
state, the inputs, and what the step adds at most. A step is forward, loss and backward,
with the same seed. Bits are those of the loss, all gradients and all buffers. Steps are
timed in turns with eager's, by the processor time of one thread, since others may work
on the machine. Asserts no time; a limit that is exceeded is part of the result.

Below a floor there is no plan: nothing is run then, and the model counts as trained if
it trains at the limits that have one. What is not planned, and does not fit otherwise,
trains with `spill_to`.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import math
import multiprocessing
import os
import re
import statistics
import sys
import tempfile
import time
import traceback
import warnings
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import machine
import torch
import torch._inductor.lowering  # which decompositions of pooling ask
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import memcfg.torch as mt
from memcfg.errors import InfeasiblePlanError

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))
from conformance import LIBRARIES, cases, loss_of
from torch_allocations import rounded

SHARES = {"100 %": 1.0, "70 %": 0.7, "50 %": 0.5}  # of eager's peak
FLOOR = "floor"
TURNS, SECONDS = (4, 25), 0.6  # of steps in turns: few and many, and when it is enough


class Ops(TorchDispatchMode):
    """Names the ops of eager's step that are neither views nor in place."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs=None):
        if not any(each.alias_info for each in func._schema.returns):
            self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


class Steps:
    """A model, its inputs, and its step."""

    def __init__(self, model: torch.nn.Module, inputs: Any) -> None:
        self.model, self.inputs = model, inputs
        self.buffers = {key: each.clone() for key, each in model.named_buffers()}

    def step(self) -> torch.Tensor:
        """One step without an update: the loss; gradients are in the model."""
        for each in self.model.parameters():
            each.grad = None
        torch.manual_seed(1)
        args, kwargs = self.inputs
        made = self.model(*args, **kwargs)  # which lives until the step ends
        loss = loss_of(made)
        loss.backward()
        return loss.detach()

    def found(self) -> list[Any]:
        """Return the loss, gradients and buffers of a step from the first state."""
        with torch.no_grad():
            for key, each in self.model.named_buffers():
                each.copy_(self.buffers[key])
        made = [self.step(), *(each.grad for each in self.model.parameters())]
        return [
            None if e is None else e.clone() for e in (*made, *self.model.buffers())
        ]

    def peak_bytes(self) -> int:
        """The bytes of a step: the state, the inputs, and what is added at most."""
        for each in self.model.parameters():
            each.grad = None
        gc.collect()
        before = mt.get_memory_info()["current"]
        mt.reset_memory_stats()
        self.step()
        added: int = mt.get_memory_info()["peak"] - before
        state = (*self.model.parameters(), *self.model.buffers())
        tensors = [e for e in (*state, *tree_leaves(self.inputs)) if torch.is_tensor(e)]
        storages = {e.untyped_storage()._cdata: e.untyped_storage() for e in tensors}
        return added + sum(rounded(each.nbytes()) for each in storages.values())


def same(one: list[Any], other: list[Any]) -> bool:
    """Return whether results have the same bits; NaN is NaN."""
    return all(
        (a is None and b is None)
        or (
            a is not None
            and b is not None
            and torch.equal(a.nan_to_num(), b.nan_to_num())
        )
        for a, b in zip(one, other, strict=True)
    )


def times_of(one: Steps, other: Steps) -> float:
    """The processor time of one step in that of another: a median of turns."""
    ratios: list[float] = []
    began = time.process_time()
    few, many = TURNS
    while len(ratios) < few or (
        len(ratios) < many and time.process_time() - began < SECONDS
    ):
        seconds = {}
        pair = (("one", one), ("other", other))
        for name, each in pair if len(ratios) % 2 else reversed(pair):
            start = time.process_time()
            each.step()
            seconds[name] = time.process_time() - start
        ratios.append(seconds["one"] / seconds["other"])
    return statistics.median(ratios)


def reason(error: BaseException) -> str:
    """Return the type and the first line of an error."""
    lines = str(error).strip().splitlines() or [""]
    told = re.sub(r"/\S*/site-packages/", "", lines[0])
    return f"{type(error).__name__}: {told[:300]}"


def decomposed(eager: Steps) -> list[str]:
    """Name the ops of eager's step that its traced graph has not."""
    with Ops() as seen:
        eager.step()
    args, kwargs = eager.inputs
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "step.json")
        model = copy.deepcopy(eager.model)
        options = {"example_kwargs": kwargs, "loss": loss_of, "times": "nominal"}
        mt.export(model, args, path, **options)
        ops = json.loads(path.read_text(encoding="utf-8"))["ops"]
    known = {each["type"].removeprefix("aten.").partition(".")[0] for each in ops}
    made = {"_to_copy", "_local_scalar_dense", "_foreach_copy", "lift_fresh"}
    return sorted(seen.names - known - made)


def estimated(eager: Steps) -> dict[str, Any]:
    """Estimate a step."""
    args, kwargs = eager.inputs
    model = copy.deepcopy(eager.model)
    for each in model.parameters():
        each.grad = None
    began = time.process_time()
    made = mt.estimate(model, args, example_kwargs=kwargs, loss=loss_of)
    return {
        "eager_bytes": made.eager_bytes,
        "planned_bytes": made.peak_bytes,
        "floor_bytes": made.floor_bytes,
        "seconds": time.process_time() - began,
    }


def budgeted(
    eager: Steps,
    first: torch.nn.Module,
    wanted: list[Any],
    limit: int,
    spill_to: str | None = None,
) -> dict[str, Any]:
    """Train a copy of a model within a limit."""
    torch._dynamo.reset()
    result: dict[str, Any] = {"limit_bytes": limit}
    if spill_to is not None:
        result["in_files"] = True
    own = Steps(copy.deepcopy(first), eager.inputs)
    mt.budget(own.model, limit, loss=loss_of, spill_to=spill_to)
    began = time.process_time()
    try:
        found = own.found()
        result["first_step_seconds"] = time.process_time() - began
        result["has_bits"] = same(found, wanted)
        del found
        for _ in range(2):  # the second is measured, and the third planned again
            own.step()
        result["peak_bytes"] = own.peak_bytes()
    except InfeasiblePlanError as error:
        return result | {"smallest_bytes": error.smallest_limit_bytes}
    except Exception as error:  # of any kind: it is the result
        traceback.print_exc()
        return result | {"error": reason(error)}
    result["predicted_bytes"] = mt.get_budget(own.model).predicted_peak_bytes
    return result | {"times_eager": times_of(own, eager)}


def tried(
    eager: Steps,
    first: torch.nn.Module,
    wanted: list[Any],
    limit: int,
    *,
    is_planned: bool,
) -> dict[str, Any]:
    """Train within a limit; what is not planned, with a file if nothing else fits."""
    done = budgeted(eager, first, wanted, limit)
    if is_planned or "peak_bytes" in done:
        return done
    with tempfile.TemporaryDirectory() as folder:
        files = budgeted(eager, first, wanted, limit, folder)
    return files if "peak_bytes" in files else done


def measure(name: str, library: str, limits: list[str], path: Path) -> None:
    """Measure a model, and write the results so far after each of its limits."""
    began = time.process_time()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    mt.limit_cpu("4GiB", tag_modules=False)
    result: dict[str, Any] = {"model": name}

    def say(**more: Any) -> None:
        result.update(more, process_seconds=time.process_time() - began)
        path.write_text(json.dumps(result), encoding="utf-8")

    try:
        case = cases(library)[name]
        torch.manual_seed(0)
        model = case.build().train()
        eager = Steps(model, case.inputs())
        first = copy.deepcopy(model)  # in the first state
        wanted = eager.found()
        again = eager.found()
        eager.step()
        peak = eager.peak_bytes()
        say(eager_bytes=peak, is_repeatable=same(wanted, again), limits={})
        del again
        try:
            say(estimate=estimated(eager))
        except ValueError as error:  # it is not one graph, and no less under a budget
            say(estimate={}, unplanned=reason(error))
            limits = [each for each in limits if each != FLOOR]
        for each in limits:
            share = SHARES.get(each)
            floor = result["estimate"].get("floor_bytes", 0)
            limit = floor if share is None else int(share * peak)
            done = {"limit_bytes": limit, "smallest_bytes": floor}
            if limit >= floor:
                is_planned = "unplanned" not in result
                done = tried(eager, first, wanted, limit, is_planned=is_planned)
            say(limits=result["limits"] | {each: done})
        has_bits = all(e.get("has_bits", True) for e in result["limits"].values())
        if not has_bits and "unplanned" not in result:
            say(decomposed=decomposed(eager))
    except Exception as error:  # of any kind: it is the result
        traceback.print_exc()
        say(error=reason(error))


def warm_up() -> None:
    """Import what PyTorch's compiler imports when it runs, before processes fork."""
    torch.set_num_threads(1)
    model = torch.nn.Linear(4, 4)
    x = torch.ones(2, 4)
    mt.estimate(model, (x,), times="nominal")
    mt.budget(model, math.inf, times="nominal")(x).sum().backward()


def run(name: str, library: str, limits: list[str], seconds: float) -> dict[str, Any]:
    """Measure a model in a forked process that may take so many seconds."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "result.json")
        child = multiprocessing.get_context("fork").Process(
            target=measure, args=(name, library, limits, path)
        )
        child.start()
        child.join(seconds)
        late = child.is_alive()
        if late:
            child.kill()
            child.join()
        result = {"model": name}
        if path.exists():
            result = json.loads(path.read_text(encoding="utf-8"))
        if late:
            result["error"] = f"not done after {seconds:.0f} s"
        elif child.exitcode:
            result["error"] = f"the process ended with {child.exitcode}"
        return result


def told(result: dict[str, Any]) -> str:
    """Return a line on a model."""
    parts = [f"{result['model']:<42}"]
    if "unplanned" in result:
        parts.append("saved tensors")
    if result.get("eager_bytes"):
        parts.append(f"{result['eager_bytes'] / 2**20:7.1f} MiB")
    known = (result.get("estimate") or {}).get("eager_bytes")
    if known:
        parts.append(f"est {known / result['eager_bytes']:.4f}")
    for share, each in result.get("limits", {}).items():
        if "error" in each:
            parts.append(f"{share}: {each['error']}")
        elif "smallest_bytes" in each:
            parts.append(f"{share}: floor {each['smallest_bytes'] / 2**20:.1f}")
        else:
            over = each["peak_bytes"] - each["limit_bytes"]
            ratio = each.get("times_eager", math.nan)
            bits = "" if each["has_bits"] else " OTHER BITS"
            parts.append(f"{share}: {ratio:.2f}{bits}{f' OVER {over}' * (over > 0)}")
    if result.get("decomposed"):
        parts.append(f"without {', '.join(result['decomposed'])}")
    if "error" in result:
        parts.append(result["error"])
    return "  ".join([*parts, f"{result.get('process_seconds', 0):.0f} s"])


def packages() -> dict[str, str]:
    """Return the versions of the libraries."""
    found = {}
    for each in ("torch", *LIBRARIES[1:]):
        try:
            found[each] = version(each)
        except PackageNotFoundError:
            continue
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", help="parts of names (default: all)")
    parser.add_argument("--limits", nargs="+", default=[*SHARES, FLOOR])
    parser.add_argument("--seconds", type=float, default=600, help="of a model")
    parser.add_argument("--again", nargs="*", help="parts of names to measure anew")
    parser.add_argument("--output", type=Path, help="the file of the results")
    options = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    warm_up()
    results: dict[str, Any] = {}
    if options.output is not None and options.output.exists():
        document = json.loads(options.output.read_text(encoding="utf-8"))
        place = document["environment"]
        there = {key: place[key] for key in ("processor", "date")}
        results = {each["model"]: there | each for each in document["results"]}
    for library in LIBRARIES:
        for name in cases(library):
            again = options.again is not None and any(
                part in name for part in options.again
            )
            if name in results and not again:
                continue
            if options.models and not any(part in name for part in options.models):
                continue
            made = run(name, library, options.limits, options.seconds)
            print(told(made), flush=True)
            place = machine.facts() | {"packages": packages(), "threads": 1}
            place["clock"] = "process"
            there = {key: place[key] for key in ("processor", "date")}
            results[name] = made | there
            if options.output is not None:
                document = {"environment": place, "results": list(results.values())}
                text = json.dumps(document, indent=1) + "\n"
                options.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
