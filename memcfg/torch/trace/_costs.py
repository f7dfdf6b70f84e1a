"""Seconds and scratch of each distinct op, measured once on its device.

Scratch is the peak of the bytes that an op allocates beyond its results, by the exact
events of the allocator. Inputs are random, in the layout of the traced ones, including
conjugate and negative views. Integers are zeros, which are valid indices. Where scratch
depends on the values, as in `matrix_exp`, the values are of the kind that needs the
most.
"""

from __future__ import annotations

import json
import operator
import os
import platform
import time
import warnings
from functools import cache
from hashlib import sha256
from threading import Thread
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed, fx
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.autograd import (
    ProfilerConfig,
    ProfilerState,
    _disable_profiler_legacy,
    _enable_profiler_legacy,
)
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

from memcfg._caller import outside
from memcfg.devices._file_cache import CacheKind, find_file_cache
from memcfg.graph import TIMES
from memcfg.torch.trace._traced import (
    ALIGNMENTS,
    RUNS_AS,
    nbytes_of,
    nominal_costs,
    values_of,
)
from memcfg.units import align_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from memcfg.torch.trace._traced import Costs

_KEPT = CacheKind(
    "torch_costs",
    "MEMCFG_TORCH_COSTS",
    16 * 2**20,
    "the costs of PyTorch's ops are not kept on the disk ({reason}), and are measured "
    "again in each process",
)
_AGREED = "memcfg/seconds/"  # keys of seconds that ranks share
_RUNS = 2  # runs, of which the shortest counts
_LONG = 1e-3  # seconds of a run beside which recording its allocations is nothing
_Costs = dict[str, tuple[float, int]]
told_by: dict[Any, Costs] = {}  # of ops that report their own costs


class MeasuredCosts:
    """Costs of distinct ops: measured once, and cached in memory and on disk."""

    def __init__(self) -> None:
        self._known: _Costs = {}

    def prepare(self, nodes: Iterable[fx.Node]) -> None:
        """Measure the nodes whose costs are not known."""
        new: dict[str, fx.Node] = {}
        for node in nodes:
            if _is_measured(node):
                key = _key_of(node)
                if key not in self._known and key not in new:
                    new[key] = node
        self._find(new)
        for key, node in new.items():
            if key in self._known:
                seconds, scratch = self._known[key]
                self._known[key] = _agreed_seconds(_key_of(node, ""), seconds), scratch

    def _find(self, wanted: Mapping[str, fx.Node]) -> None:
        """Read the costs of nodes from the disk, and measure those that it lacks."""
        new = dict(wanted)
        cache = find_file_cache(_KEPT)
        for key in wanted:
            cached = None if cache is None else cache.read(key)
            if cached is not None:
                seconds, scratch = json.loads(cached)
                self._known[key] = seconds, scratch
                del new[key]
        if not new:
            return
        measured = _measure(new)
        if unknown := sorted({str(new[key].target) for key in new.keys() - measured}):
            warnings.warn(
                f"cannot run {', '.join(unknown)} on made-up inputs: their time is "
                "nominal and their scratch unknown, so a peak may be above its limit",
                RuntimeWarning,
                stacklevel=outside("torch"),
            )
        if cache is not None:
            for key, costs in measured.items():
                cache.write(key, json.dumps(costs).encode())
        self._known.update(measured)

    def __call__(self, node: fx.Node) -> tuple[float, int]:
        """Return the seconds and scratch bytes of a node."""
        if node.target in told_by:
            return told_by[node.target](node)
        if not _is_measured(node):
            return nominal_costs(node)
        result = self._known.get(_key_of(node))
        return nominal_costs(node) if result is None else result


def costs_of(times: str) -> Costs:
    """Return the costs of a name; raise ValueError if it is unknown."""
    if times not in TIMES:
        raise ValueError(f"times are one of {', '.join(TIMES)}, not {times!r}")
    return nominal_costs if times == "nominal" else MeasuredCosts()


def _agreed_seconds(key: str, seconds: float) -> float:
    """Return the seconds of the first rank that told its own for a key.

    Plans of ranks that have the same graph are then the same, though clocks differ. It
    is this rank's own number without `torch.distributed`, or with one rank.
    """
    if not (distributed.is_available() and distributed.is_initialized()):
        return seconds
    if distributed.get_world_size() == 1:
        return seconds
    store = distributed.distributed_c10d._get_default_store()
    told = store.compare_set(_AGREED + key, "", seconds.hex())
    return float.fromhex(told.decode())


def _is_measured(node: fx.Node) -> bool:
    """Return whether a node is one of PyTorch's own ops; others may have effects."""
    return (
        node.op == "call_function"
        and isinstance(node.target, torch._ops.OpOverload)
        and node.target.namespace in ("aten", "memcfg")
        and node.target not in told_by
    )


def _run(node: fx.Node) -> Any:
    """Return the function that a planned step calls for a node."""
    return node.meta.get(RUNS_AS, node.target)


@cache
def _processor() -> tuple[str, str]:
    """Return the kind of processor, and the instructions that PyTorch uses of it."""
    return platform.processor(), torch.backends.cpu.get_cpu_capability()


def _machine_of(node: fx.Node) -> str:
    """Return what costs depend on beside the node."""
    machine = torch.__version__, torch.get_num_threads(), _processor()
    gpus = [torch.cuda.get_device_name(each) for each in _gpus([node])]
    return repr((machine, (torch.backends.mkldnn.enabled, os.cpu_count()), gpus))


def _key_of(node: fx.Node, machine: str | None = None) -> str:
    """Return a key of what a node computes, by default on this machine."""

    def properties(each: Any) -> Any:
        if not isinstance(each, fx.Node):
            return repr(each)
        return [
            (
                (str(v.dtype), tuple(v.shape), v.stride(), v.device.type),
                (v.is_conj(), v.is_neg()),
            )
            if isinstance(v, torch.Tensor)
            else repr(v)
            for v in [each.meta.get("val")]
        ]

    arguments = fx.node.map_aggregate((node.args, dict(node.kwargs)), properties)
    what = _run(node)
    name = what.__name__ if RUNS_AS in node.meta else str(what)
    where = _machine_of(node) if machine is None else machine
    text = repr((where, name, arguments))
    return sha256(text.encode()).hexdigest()


def _gpus(nodes: Iterable[fx.Node]) -> list[int]:
    """Return the indices of the GPUs that nodes use."""
    result = {
        value.device.index or 0
        for node in nodes
        for each in (node, *node.all_input_nodes)
        for value in values_of(each)
        if value.device.type == "cuda"
    }
    return sorted(result)


def _made_up(node: fx.Node) -> Any:
    """Make values like those of a node.

    Additional results of an op, such as indices of maxima or a workspace that only its
    gradient understands, are made by that op; other values may crash.
    """
    value = node.meta.get("val")
    if node.target is operator.getitem and isinstance(value, torch.Tensor):
        maker, at = node.args
        own = not value.dtype.is_floating_point
        if own and isinstance(maker, fx.Node) and _is_measured(maker):
            arguments, options = made_up_arguments(maker)
            return _run(maker)(*arguments, **options)[at]

    def like(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        real = torch.empty_strided(
            value.shape, value.stride(), dtype=value.dtype, device=value.device
        )
        count = real.untyped_storage().nbytes() // real.element_size()
        flat = real.as_strided((count,), (1,), 0)  # elements may share memory
        if value.dtype.is_floating_point or value.dtype.is_complex:
            parts = torch.view_as_real(flat) if value.dtype.is_complex else flat
            parts.uniform_(0.1, 0.9)
        else:
            flat.zero_()
        real = real.conj() if value.is_conj() else real  # which many ops resolve
        return torch._neg_view(real) if value.is_neg() else real

    return tree_map(like, node.meta["val"])


def _measure(nodes: dict[str, fx.Node]) -> _Costs:
    """Run each node a few times, alone; nodes that cannot run so are left out."""
    result: _Costs = {}
    with (
        unset_fake_temporarily(),
        _disable_current_modes(),
        torch.random.fork_rng(devices=_gpus(nodes.values())),
        torch.no_grad(),
        torch._C._DisableAutocast(),
    ):
        ran = {key: _costs_of_runs(node) for key, node in nodes.items()}
    for key, node in nodes.items():
        costs = ran[key]
        if costs is None:
            continue
        read = {
            v.untyped_storage()._cdata
            for each in node.all_input_nodes
            for v in values_of(each)
        }
        made = {
            v.untyped_storage()._cdata: nbytes_of(v)
            for v in values_of(node)
            if v.untyped_storage()._cdata not in read
        }
        result[key] = costs[0], max(0, costs[1] - sum(made.values()))
    return result


def made_up_arguments(node: fx.Node) -> tuple[Any, Any]:
    """Make arguments like those of a node."""
    made = {each: _made_up(each) for each in node.all_input_nodes}
    arguments = fx.node.map_arg(node.args, lambda each: made[each])
    return arguments, fx.node.map_arg(dict(node.kwargs), lambda each: made[each])


def _costs_of_runs(node: fx.Node) -> tuple[float, int] | None:
    """Return the seconds of a node, and the peak of the bytes that it allocates.

    The shortest of a few runs after a warm-up counts. Return None if it cannot run so.
    """
    gpus = _gpus([node])
    seconds: list[float] = []
    try:
        arguments, options = made_up_arguments(node)

        def run() -> None:
            _wait(gpus)
            began = time.perf_counter()
            made = _run(node)(*arguments, **options)
            _wait(gpus)
            seconds.append(time.perf_counter() - began)
            del made

        run()
        peak, _ = _bytes(run)
        # recording allocations takes a time that only short runs show
        counted = seconds[1:] if seconds[0] >= _LONG else []
        while len(counted) < _RUNS:
            run()
            counted.append(seconds[-1])
    except (RuntimeError, TypeError, ValueError, IndexError):
        return None
    return min(counted), peak


def _wait(gpus: Iterable[int]) -> None:
    """Wait for all work of GPUs."""
    for gpu in gpus:
        torch.cuda.synchronize(gpu)


def _allocations(run: Callable[[], Any]) -> list[Any]:
    """Run something, and return the allocations of this thread.

    PyTorch's legacy profiler records them in order. The newer one writes to stderr when
    it starts and stops, and ends any other that is running.
    """
    _enable_profiler_legacy(
        ProfilerConfig(
            ProfilerState.CPU,
            False,  # shapes
            True,  # memory
            False,  # stacks
            False,  # FLOPs
            False,  # modules
            torch._C._profiler._ExperimentalConfig(),
        )
    )
    try:
        run()
    finally:
        records = _disable_profiler_legacy()
    return [record for thread in records for record in thread]


def bytes_of_run(run: Callable[[], Any]) -> tuple[int, int]:
    """Return the peak of the bytes that a run allocates, and the bytes it keeps.

    Both are 0 while another profiler runs, as each thread has only one.
    """
    if torch.autograd._profiler_enabled():
        run()
        return 0, 0
    return _bytes(run)


def _bytes(run: Callable[[], Any]) -> tuple[int, int]:
    """Return the peak of the bytes that a run allocates, and the bytes it keeps."""
    records: list[Any] = []
    if torch.autograd._profiler_enabled():  # the user's: each thread has only one
        errors: list[Exception] = []

        def work() -> None:
            try:
                with torch.no_grad():
                    records.extend(_allocations(run))
            except Exception as error:  # of the op, to raise in this thread
                errors.append(error)

        thread = Thread(target=work)
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
    else:
        records = _allocations(run)
    now = peak = 0
    for record in records:
        if record.kind() == "memory_alloc":
            now += _whole(record.cpu_memory_usage(), "cpu")
            now += _whole(record.cuda_memory_usage(), "cuda")
            peak = max(peak, now)
    return peak, now


def _whole(nbytes: int, kind: str) -> int:
    """Round allocated or, if negative, freed bytes as their allocator does."""
    size = align_up(abs(nbytes), ALIGNMENTS[kind])
    return size if nbytes > 0 else -size
