"""What a crash report says of models: settings, fallbacks, plans, memory of a step."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from memcfg._core._live import Living
from memcfg.errors import InfeasiblePlanError
from memcfg.memory.crash._crash_sections import table, wrapped
from memcfg.memory.crash._crash_setting import Section, contributions
from memcfg.plan import share, simulate
from memcfg.runtime import TimelineEntry
from memcfg.runtime._report import draw_timeline
from memcfg.runtime._state import model_tag
from memcfg.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memcfg.graph import Graph
    from memcfg.nn.training._tracing import ProgramKey
    from memcfg.nn.training.alternatives._fallbacks import Fallback
    from memcfg.plan import Plan
    from memcfg.runtime import Executor

__all__ = ["CrashFacts", "crash_subjects", "describe_call", "name_of"]

_MODELS = 8  # that are described, the failing one first
_LONGEST = 40  # characters of an argument


@dataclass(frozen=True)
class CrashFacts:
    """What a model is compiled for, and what it has loaded."""

    owner: str
    device: str
    policy: str
    times: str
    training_mode: str
    inference_mode: str
    on_oom: list[str]
    batch_statistics: str | None
    arena_bytes: int
    programs: list[str]
    lead: str  # the program whose plan is described; empty if none is loaded
    in_force: list[Fallback]
    past: list[Fallback]  # the latest ones, including those in force
    refused: ProgramKey | None
    executor: Executor | None
    graph: Callable[[ProgramKey], Graph]


class _Subject(Protocol):
    def crash_facts(self) -> CrashFacts: ...


crash_subjects: Living[_Subject] = Living()


def name_of(step: Any) -> str:
    """Return the name of a step of ``on_oom``: a string, a policy or a function."""
    names = (step, getattr(step, "name", None), getattr(step, "__name__", None))
    known = (name for name in names if isinstance(name, str))
    return next(known, type(step).__name__)


def describe_call(name: str, args: tuple[Any, ...], options: dict[str, Any]) -> str:
    """Return a call without the values of its arrays."""
    words = [_described(each) for each in args]
    words += [f"{key}={_described(value)}" for key, value in options.items()]
    return f"{name}({', '.join(words)})"


def _described(value: Any) -> str:
    if value is None or isinstance(value, bool | int | float | str):
        text = repr(value)
        return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
    return _of_data(value)


def _of_data(value: Any) -> str:
    """Return what may be data without its values."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape}"
    if isinstance(value, tuple | list):
        inside = ", ".join(_of_data(each) for each in value[:3])
        return f"({inside}{', ...' * (len(value) > 3)})"
    return type(value).__name__


def _sections(error: BaseException | None, owner: str) -> Iterator[Section]:
    """Yield the sections on live models, the failing one first."""
    facts = [each.crash_facts() for each in crash_subjects.alive()]
    facts.sort(key=lambda each: (each.owner != owner, not each.arena_bytes))
    for each in facts[:_MODELS]:
        yield from _of_model(each, error if each.owner == owner else None)


def _of_model(facts: CrashFacts, error: BaseException | None) -> Iterator[Section]:
    name, key = facts.owner, model_tag(facts.owner)
    title = name if name.lower().startswith("model") else f"Model {name}"
    yield Section(key, title, partial(_settings, facts))
    title = f"Fallbacks of {name}"
    yield Section(f"{key}: fallbacks", title, partial(_fallbacks, facts))
    if isinstance(error, InfeasiblePlanError) and facts.refused is not None:
        title = f"What {name} was refused, planned without a limit"
        make = partial(_refused, facts, facts.refused)
        yield Section(f"{key}: refused", title, make)
    if facts.lead:
        title = f"Plan of {name}"
        yield Section(f"{key}: plan", title, partial(_plan, facts, facts.lead))
        title = f"Memory of {name} over a step"
        yield Section(f"{key}: timeline", title, partial(_timeline, facts, facts.lead))


def _settings(facts: CrashFacts) -> tuple[str, Any]:
    data = {
        "device": facts.device,
        "memory": facts.policy,
        "times": facts.times,
        "training_workspace_mode": facts.training_mode,
        "inference_workspace_mode": facts.inference_mode,
        "on_oom": facts.on_oom,
        "batch_statistics": facts.batch_statistics,
        "arena_bytes": facts.arena_bytes,
        "programs": facts.programs,
        "lead": facts.lead,
    }
    rows = {
        "device": facts.device,
        "policy": f"{facts.policy}, {facts.times} times",
        "workspaces": f"{facts.training_mode}; inference: {facts.inference_mode}",
        "on_oom": ", ".join(facts.on_oom),
        "statistics": facts.batch_statistics,
        "arena": format_bytes(facts.arena_bytes, exact=True),
        "programs": "; ".join(facts.programs) or "none are loaded",
    }
    return table(rows), data


def _fallbacks(facts: CrashFacts) -> tuple[str, Any]:
    now = [f"  {each}" for each in facts.in_force]
    lines = ["In force:", *(now or ["  none"])]
    if len(facts.past) > len(facts.in_force):
        lines += ["All, the latest one last:", *(f"  {each}" for each in facts.past)]
    data = {
        "in_force": [asdict(each) for each in facts.in_force],
        "past": [asdict(each) for each in facts.past],
    }
    return wrapped("\n".join(lines)), data


def _refused(facts: CrashFacts, key: ProgramKey) -> tuple[str, Any]:
    """Return the plan of the refused program that computes each op once."""
    graph = facts.graph(key)
    plan = share()(graph)
    ops = ((graph.ops[op], nbytes) for op, nbytes in simulate(graph, plan).timeline)
    timeline = tuple(TimelineEntry(op.name, op.phase, n, n, None) for op, n in ops)
    data = {**_numbers(plan), "timeline": [asdict(each) for each in timeline]}
    return f"{plan}\n\n{draw_timeline(timeline)}", data


def _plan(facts: CrashFacts, program: str) -> tuple[str, Any]:
    plan = None if facts.executor is None else facts.executor.plans.get(program)
    if plan is None:
        return f"{program!r} is not planned: it runs in a workspace mode.", None
    return f"Program {program!r}\n{plan}", {"program": program, **_numbers(plan)}


def _numbers(plan: Plan) -> dict[str, Any]:
    summary = plan.summary
    return {
        "graph": plan.graph,
        "method": plan.method,
        "limit_bytes": plan.limit_bytes,
        "predicted": asdict(plan.predicted),
        "summary": None if summary is None else asdict(summary),
        "actions": len(plan.actions),
    }


def _timeline(facts: CrashFacts, program: str) -> tuple[str, Any]:
    report = None if facts.executor is None else facts.executor.report_now(program)
    if report is None:
        return f"Program {program!r} has not run since it was loaded.", None
    return str(report), asdict(report)


contributions.append(_sections)
