"""What a model does with a program that does not fit: fallbacks, one at a time.

The steps of `compile(on_oom=)` are tried in their order: another method or policy plans
the program, the batch runs in micro-batches whose gradients are accumulated, layers
compute in bfloat16, or another model is trained, such as the same one of smaller
images. If none helps, the program is refused. Each fallback causes one warning and is
listed in the history of `fit`.

See docs/decisions/0037-micro-batches.md.
"""

from __future__ import annotations

import inspect
import itertools
import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from memcfg import plan as planning
from memcfg._caller import outside
from memcfg._checks import check_policy, name_of, unknown
from memcfg._missing import nearest
from memcfg.errors import FallbackWarning, InfeasiblePlanError
from memcfg.nn.training._tracing import ProgramKey, is_assignment, shares_of
from memcfg.nn.training.alternatives._batch_search import BatchSearch
from memcfg.nn.training.ranks._sharding import share_of
from memcfg.plan.search._watch import planning_clock
from memcfg.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from memcfg.graph import Graph
    from memcfg.nn.training._tracing import TraceSpec
    from memcfg.plan import Plan, Policy
    from memcfg.runtime import Executor

__all__ = [
    "STEPS",
    "Division",
    "Fallback",
    "OnOom",
    "Thriftier",
    "divide",
    "get_on_oom",
    "why_whole",
]

STEPS = ("replan", "micro_batch", "mixed_bfloat16", "resize")
_OTHER_NAMES = {"bfloat16": "mixed_bfloat16"}
_STATISTICS = ("moving_mean", "moving_variance")  # of batch normalisation
_SECONDS = 20.0  # processor seconds to look for a larger micro-batch


class OnOom(NamedTuple):
    """The arguments of `compile` about programs that do not fit."""

    steps: tuple[Any, ...]  # tried in this order; without any, programs are refused
    batch_statistics: str | None

    @property
    def own(self) -> tuple[Any, ...]:
        """The steps before the first one that makes another model."""
        return tuple(itertools.takewhile(_keeps_model, self.steps))

    def behind(self) -> tuple[Callable[[Any], Any] | str | None, OnOom]:
        """Return the step that makes another model, and the steps of that model."""
        rest = self.steps[len(self.own) :]
        statistics = self.batch_statistics if "micro_batch" in rest else None
        return (rest[0] if rest else None), OnOom(rest[1:], statistics)


def get_on_oom(on_oom: Any, batch_statistics: Any) -> OnOom:
    """Check the arguments of `compile`."""
    steps = tuple(on_oom) if isinstance(on_oom, list | tuple) else (on_oom,)
    if not steps:
        raise ValueError("on_oom has no steps: name some, or pass 'raise'")
    steps = tuple(map(_step, steps))
    if steps == ("raise",):
        steps = ()
    if "raise" in steps:
        raise ValueError(
            f"on_oom='raise' cannot be combined with other steps, got {on_oom!r}"
        )
    for step in steps:
        _check_step(step)
    if any(step in steps[:i] for i, step in enumerate(steps)):
        raise ValueError(f"on_oom names a step twice: {on_oom!r}")
    if batch_statistics not in (None, "micro"):
        raise unknown("batch_statistics", str(batch_statistics), ("micro",))
    if batch_statistics is not None and "micro_batch" not in steps:
        raise ValueError(
            f"batch_statistics={batch_statistics!r} needs 'micro_batch' in on_oom, "
            f"which is {on_oom!r}"
        )
    return OnOom(steps, batch_statistics)


def _step(step: Any) -> Any:
    """Return a step by its usual name, or the policy of a name."""
    if not isinstance(step, str):
        return step
    make = None if step in STEPS else planning.NAMED_POLICIES.get(step)
    return _OTHER_NAMES.get(step, step) if make is None else make()


def _check_step(step: Any) -> None:
    """Raise TypeError or ValueError unless this is a step."""
    if isinstance(step, str):
        if step not in STEPS:
            names = *STEPS, *_OTHER_NAMES, "raise"
            near = nearest(step, (*names, *planning.NAMED_POLICIES), 0.7)
            if near is None:
                raise ValueError(
                    f"unknown on_oom {step!r}; known: {', '.join(names)}, and the "
                    "policies that compile(memory=...) takes"
                )
            raise unknown("on_oom", step, (near,))
        return
    if callable(step) and hasattr(step, "name") and not inspect.isclass(step):
        check_policy(step)
        return
    for name, factory in planning.NAMED_POLICIES.items():
        if step is factory:
            raise TypeError(f"on_oom takes a policy: call plan.{name}()")
    if not _is_function(step):
        raise TypeError(f"on_oom takes a name, a policy or a function, not {step!r}")


def _keeps_model(step: Any) -> bool:
    return step != "resize" and not _is_function(step)


def _is_function(step: Any) -> bool:
    return callable(step) and not hasattr(step, "name") and not inspect.isclass(step)


@dataclass(frozen=True)
class Fallback:
    """How a program runs that does not fit in the way that was asked for.

    Attributes
    ----------
    step : {"replan", "micro_batch", "mixed_bfloat16", "resize", "model"}
        What is done instead: another method plans the program, the batch runs in parts,
        layers compute in bfloat16, the model of smaller images is trained, or another
        one.
    program : str
        The program, such as ``"train, batch 1024"``.
    missing_bytes : int
        The bytes beyond the limit that it would need otherwise.
    batch_size : int
        Samples of a micro-batch, or of the batch if it runs as a whole.
    parts : int
        The number of micro-batches in a batch.
    name : str
        The name of the method or the model, or the size of images.
    """

    step: str
    program: str
    missing_bytes: int
    batch_size: int
    parts: int = 1
    name: str = ""

    def __str__(self) -> str:
        need = f"{self.program} needs {format_bytes(self.missing_bytes)} more"
        if self.step == "replan":
            return f"{need}; {self.name} plans it instead of the model's policy"
        if self.step == "mixed_bfloat16":
            return f"{need}; the model computes in bfloat16"
        if self.step == "resize":
            images = f"images are made {self.name} first"
            return f"{need}; {images}, by history.model, which is trained instead"
        if self.step == "model":
            return f"{need}; {self.name!r} is trained instead, as history.model"
        how = "with accumulated gradients" * self.program.startswith("train")
        return f"{need}; it runs as {self.parts} x {self.batch_size} {how}".rstrip()

    def warn(self, owner: str) -> None:
        """Warn of the fallback, and say how to make it an error."""
        warnings.warn(
            f"{owner}: {self}. compile(on_oom='raise') makes this an error",
            FallbackWarning,
            stacklevel=outside(),
        )


class Division(NamedTuple):
    """The division of a batch into parts that run one after another."""

    size: int  # samples of each part but the last, which may have fewer
    needed: int  # free bytes with which the whole batch is planned again
    parts: int = 0  # their number, if ranks have agreed on it

    def ranges(self, samples: int) -> list[tuple[int, int]]:
        """Return where the samples of each part begin and end."""
        if self.parts:
            return share_of(samples, self.parts)
        starts = range(0, samples, self.size)
        return [(i, min(i + self.size, samples)) for i in starts]

    def keys(self, whole: ProgramKey, *, counts: bool) -> list[ProgramKey]:
        """Return the programs that the parts of a batch need, the most used first."""
        ranges = self.ranges(whole.batch_size)
        kinds = [whole.kind] + ["count"] * counts
        sizes = dict.fromkeys(end - begin for begin, end in ranges)
        return [self.key(whole, size, kind) for kind in kinds for size in sizes]

    def key(self, whole: ProgramKey, size: int, kind: str) -> ProgramKey:
        """Return the program of a part."""
        # Only updates depend on the number of parts.
        parts = len(self.ranges(whole.batch_size)) if kind == "train" else 2
        if kind in ("predict", "count"):
            parts = 1
        outputs = whole.with_outputs and kind != "count"
        return ProgramKey(
            kind,
            size,
            whole.weights,
            parts,
            whole.lengths,
            ranks=1 if kind == "count" else whole.ranks,
            with_outputs=outputs,
            gathers=whole.gathers and kind != "count",
        )


@dataclass(frozen=True)
class Thriftier:
    """A policy, and another one that plans the graphs which do not fit with it."""

    policy: Policy
    other: Policy

    @property
    def name(self) -> str:
        """The name of the first policy."""
        return name_of(self.policy)

    def __call__(self, graph: Graph, limit_bytes: int | None = None) -> Plan:
        """Plan a graph; see `Policy`."""
        try:
            return self.policy(graph, limit_bytes=limit_bytes)
        except InfeasiblePlanError as error:
            refusal = error
        try:
            return self.other(graph, limit_bytes=limit_bytes)
        except InfeasiblePlanError as error:
            least = min(refusal, error, key=lambda each: each.smallest_limit_bytes)
        raise least from None


def why_whole(
    spec: TraceSpec, key: ProgramKey, on_oom: OnOom, graph: Callable[[], Graph]
) -> str:
    """Return why a batch cannot run in parts; empty if it can."""
    if key.batch_size == 1:
        return "the batch has one sample"
    if any(node.batch_size for node in spec.network.nodes):
        return "the batch size is fixed"
    if any(is_assignment(op) for op in graph().ops):
        return "a layer assigns weights in `call`, once in a batch"
    if spec.network.mixes_samples(key.kind == "train"):
        return "a `call` computes with the whole batch"
    if key.kind == "predict":
        return ""
    try:
        shares_of(spec, key)
    except NotImplementedError as error:
        return str(error)
    if key.kind == "train" and getattr(spec.optimizer, "updates_itself", False):
        return f"{type(spec.optimizer).__name__}.update_step updates in every part"
    if key.kind != "train" or on_oom.batch_statistics is not None:
        return ""
    if all(weight.trainable for weight in spec.network.weights):
        return ""
    return _why_not_moved(graph())


def _why_not_moved(graph: Graph) -> str:
    """Return why moving averages would be others in parts; empty without any."""
    moved = [op.name for op in graph.ops if op.type == "moving_average"]
    if not moved:
        return ""
    names = [name.removesuffix("/moved") for name in moved]
    others = [name for name in names if not name.endswith(_STATISTICS)]
    what = "batch normalisation would use the statistics of micro-batches"
    if len(others) == len(names):
        what = f"{others[0]!r} would move with micro-batches"
    return f"{what}, which compile(batch_statistics='micro') permits"


def divide(
    key: ProgramKey,
    below: int,
    executor: Executor,
    policy: Policy,
    graph_of: Callable[[ProgramKey], Graph],
    promised: int,
    needed: int,
    limit_bytes: int | None = None,
) -> Division | None:
    """Choose the parts in which a batch runs; None if no part below a size fits.

    Of the largest part that fits and the largest that fits without computing anything
    twice, the one with the lower predicted time of a sample is taken.
    """

    def part(size: int) -> Graph:
        return graph_of(Division(size, 0).key(key, size, key.kind))

    end = planning_clock() + _SECONDS
    search = BatchSearch(executor, policy, part, promised, limit_bytes, end)
    missing = needed - (executor.budget_bytes(promised, limit_bytes) or 0)
    search.shortfalls[key.batch_size] = max(missing, 1)
    largest, _ = search.largest(below)
    if not largest:
        return None
    size = largest
    plain = search.largest_plain(largest + 1)
    if plain and 4 * plain >= largest:
        size = min((largest, plain), key=lambda each: _seconds(search, each))
    parts = math.ceil(key.batch_size / size)
    return Division(math.ceil(key.batch_size / parts), needed)


def _seconds(search: BatchSearch, size: int) -> float:
    """Return the predicted seconds of a sample."""
    plan = search.plan(size)
    return plan.elapsed_seconds / size
