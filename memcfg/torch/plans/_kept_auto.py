"""The policy `auto`, whose plans of graphs are found again by later processes."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import memcfg
from memcfg import errors
from memcfg._core import search
from memcfg.devices._file_cache import CacheKind, digest, find_file_cache
from memcfg.errors import FormatError, InfeasiblePlanError, PlanError
from memcfg.plan import Plan, validate
from memcfg.plan.format._simulate import simulate
from memcfg.plan.search._auto import Auto
from memcfg.plan.search._request import summary_of

if TYPE_CHECKING:
    from memcfg.devices._file_cache import FileCache
    from memcfg.graph import Graph

_KEPT = CacheKind(
    "torch_plans",
    "MEMCFG_TORCH_PLANS",
    64 * 2**20,
    "plans of PyTorch's steps are not kept on the disk ({reason}), and are searched "
    "again in each process",
)
_QUICK = "share"  # the method that finds its plans as soon as a file is read
_REFUSED = "refused"


@dataclass(frozen=True)
class KeptAuto(Auto):
    """The policy that `auto` returns, with its plans and refusals kept on the disk.

    They are found by the graph, the limit, the settings of the policy, and the files of
    the planner. A plan is judged again when it is read, and is searched again if it is
    not valid for the graph within the limit. A refusal is told again as it was.
    """

    def __call__(self, graph: Graph, limit_bytes: int | None = None) -> Plan:
        """Plan a graph; see `Policy`."""
        kept = None if self.watch() is not None else find_file_cache(_KEPT)
        if kept is None:
            return super().__call__(graph, limit_bytes)
        settings = [getattr(self, each.name) for each in fields(self)]
        key = digest(_planner(), repr((settings, limit_bytes)), _described(graph))
        known = self._read(kept, key, graph, limit_bytes)
        if known is not None:
            return known
        try:
            plan = super().__call__(graph, limit_bytes)
        except InfeasiblePlanError as error:
            _keep_refusal(kept, key, error)
            raise
        if plan.method != _QUICK:
            self._keep(kept, key, graph, plan)
        return plan

    def _read(
        self, kept: FileCache, key: str, graph: Graph, limit_bytes: int | None
    ) -> Plan | None:
        """Return the plan of a file, or None; raise the refusal of one."""
        data = kept.read(key)
        if data is None:
            return None
        text = data.decode()
        if text.startswith('{"refused"'):
            told = json.loads(text)[_REFUSED]
            raise InfeasiblePlanError(told.pop("message"), **told)
        try:
            plan = self._read_plan(text, graph)
        except (FormatError, PlanError):
            return None
        is_within = limit_bytes is None or plan.peak_bytes <= limit_bytes
        return plan if is_within and plan.limit_bytes == limit_bytes else None

    def _read_plan(self, text: str, graph: Graph) -> Plan:
        """Return a judged plan of a text, with its summary."""
        plan = Plan.from_json(text)
        # Holes of an arena may exceed the limit, but an allocator has none.
        validate(graph, replace(plan, limit_bytes=None))
        summary = summary_of(graph, plan, simulate(graph, plan))
        return replace(plan, summary=replace(summary, chosen_by=self.name))

    def _keep(self, kept: FileCache, key: str, graph: Graph, plan: Plan) -> None:
        """Write a plan, if reading it gives the same."""
        text = plan.to_json()
        if self._read_plan(text, graph) == plan:
            kept.write(key, text.encode())


def _described(graph: Graph) -> str:
    """Return all of a graph that a plan may depend on."""
    # `to_json` has the first four, and no plan depends on lines.
    written = {"name", "tensors", "ops", "keep", "lines"}
    rest = [getattr(graph, e.name) for e in fields(graph) if e.name not in written]
    attributes = [(op.name, op.attributes) for op in graph.ops if op.attributes]
    return repr((rest, attributes)) + graph.to_json()


def _keep_refusal(kept: FileCache, key: str, error: InfeasiblePlanError) -> None:
    """Write a refusal, if reading it gives the same."""
    if type(error) is not InfeasiblePlanError:
        return
    told: dict[str, Any] = {name: getattr(error, name) for name in error._fields}
    try:
        text = json.dumps({_REFUSED: {"message": error.message, **told}})
    except TypeError:  # of attributes that JSON has not
        return
    again = json.loads(text)[_REFUSED]
    if str(InfeasiblePlanError(again.pop("message"), **again)) == str(error):
        kept.write(key, text.encode())


@cache
def _planner() -> str:
    """Return the version of memcfg, and the state of the files that plan or refuse."""
    package = Path(memcfg.__file__).parent
    files = [Path(search.__file__), Path(errors.__file__), Path(__file__)]
    for room in ("graph", "plan"):
        files += sorted((package / room).rglob("*.py"))
    states = [(str(each), os.stat(each)) for each in files]
    rows = [(name, each.st_size, each.st_mtime_ns) for name, each in states]
    return repr((memcfg.__version__, rows))
