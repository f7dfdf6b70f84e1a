"""What tests of public behaviour need of the inside: a new process, given times.

Beside the doubles of NVIDIA's libraries, this is the one helper for them that imports
private modules.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memcfg import _tensorflow_names
from memcfg._missing import instead as instead
from memcfg.commands import _ladder, _plans
from memcfg.commands._digits import load_digits as load_digits
from memcfg.commands._digits import residual_network as residual_network
from memcfg.commands._tasks import Task
from memcfg.commands.comparison import _compare, _comparison
from memcfg.config._registry import registry
from memcfg.data.ops._node import Node as Node
from memcfg.devices import (
    _algorithm_choice,
    _algorithm_times,
    _copy_times,
    _file_cache,
)
from memcfg.devices.cpu._onednn_library import find_onednn as find_onednn
from memcfg.files import _temporary
from memcfg.graph.rewrites import _rewriting
from memcfg.memory.crash import _crash_report, _crash_setting
from memcfg.nn import _sequential
from memcfg.nn._keras_arguments import ARGUMENTS as ARGUMENTS
from memcfg.nn._keras_arguments import argument as argument
from memcfg.nn._keras_arguments import taken as taken
from memcfg.nn._keras_names import ABSENT as ABSENT
from memcfg.nn._saving import _Writer
from memcfg.nn._saving import backup as backup
from memcfg.nn._saving import restore as restore
from memcfg.nn.datasets import _fetched
from memcfg.nn.inputs import _batches
from memcfg.nn.inputs._batches import Batch as Batch
from memcfg.nn.layers._layer import Scope, calls_to
from memcfg.nn.layers._layer import start_of as start_of
from memcfg.nn.training import _session
from memcfg.nn.training._tracing import ProgramKey
from memcfg.nn.training.alternatives import _ways_out
from memcfg.ops._expression import derivative as derivative
from memcfg.ops._expression import evaluate as evaluate
from memcfg.ops._expression import operand as operand
from memcfg.ops._expression import write as write
from memcfg.parallel.encoding._encoded_round import (
    ROUND_POSITIONS as ROUND_POSITIONS,
)
from memcfg.parallel.encoding._encoded_round import (
    count_encoded as count_encoded,
)
from memcfg.parallel.encoding._encoded_round import (
    encoded_rounds as encoded_rounds,
)
from memcfg.parallel.encoding._encoded_round import round_words as round_words
from memcfg.plan import capuchin_feedback, vdnn_all
from memcfg.plan.methods import _checkmate, _composition, _vdnn
from memcfg.plan.methods._highs import solve
from memcfg.plan.search import Lessons, Method, _reconsidered, _request, _watch
from memcfg.plan.search.recompute import _look_ahead
from memcfg.plan.search.recompute._replay_elementwise import cheap_ops as cheap_ops
from memcfg.runtime import _adaptation as adaptation
from memcfg.runtime import _executor, _packing, _state
from memcfg.runtime._program import _TIMED_STEPS, Program
from memcfg.runtime._state import ModelArena as ModelArena

TIMED_STEPS = _TIMED_STEPS  # of a plan, before others are tried
ROUNDS = adaptation._ROUNDS  # plans of a learning policy, at most
DATASET_NAMES = _tensorflow_names.DATASET  # of tf.data, and not here

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    import pytest

    from memcfg.graph import Builder, Graph
    from memcfg.nn import Layer, Model, SymbolicTensor
    from memcfg.plan import Plan


def add_to_crash_reports(patch: pytest.MonkeyPatch, *sections: Callable) -> None:
    """Have functions of an error and an owner add sections, triples, to reports."""

    def made_by(function: Callable) -> Callable:
        return lambda *given: [_crash_setting.Section(*row) for row in function(*given)]

    before = _crash_setting.contributions
    added = [made_by(each) for each in sections]
    patch.setattr(_crash_report, "contributions", [*before, *added])


def forget_warnings(patch: pytest.MonkeyPatch) -> None:
    """Warn again of what is warned of once a process: caches that cannot be used."""
    patch.setattr(_file_cache, "_told", set())


def forget_choices(patch: pytest.MonkeyPatch) -> None:
    """Choose algorithms again, as another process would."""
    patch.setattr(_algorithm_choice, "_chosen", {})


def rewrite_times(path: Path, text: str) -> None:
    """Put other text into a whole file of a cache of times."""
    cache = _file_cache.FileCache(path.parent, _algorithm_times._KEPT)
    cache.write(path.stem, text.encode())


def set_kernel_seconds(
    patch: pytest.MonkeyPatch, seconds: Callable[[object], float]
) -> None:
    """Have each kernel of the CPU take the seconds that a function gives it."""
    patch.setattr(
        "memcfg.devices.cpu._native.measure_runs", lambda kernel, _: seconds(kernel)
    )
    patch.setattr(
        "memcfg.devices.cpu._array_kernel.measure_instruction",
        lambda kernel, *_: seconds(kernel),
    )


def set_seconds_by_sizes(
    patch: pytest.MonkeyPatch, seconds: Callable[[list[int]], float]
) -> None:
    """Have each kernel take the seconds of its operands' bytes."""
    patch.setattr(
        "memcfg.devices.cpu._native.measure_runs",
        lambda kernel, _: seconds([size for size, _ in kernel.operands]),
    )
    patch.setattr(
        "memcfg.devices.cpu._array_kernel.measure_instruction",
        lambda made, sizes, scratch, pool: seconds([*sizes]),
    )


def replace_writing(patch: pytest.MonkeyPatch, write: Callable[..., None]) -> None:
    """Write files of caches by another function, such as one that fails."""
    patch.setattr(_file_cache, "write_atomically", write)


def interrupt_layout_changes(
    patch: pytest.MonkeyPatch, error: type[Exception], turn: int, *, changes: bool
) -> None:
    """Raise at one change of a weight's layout: instead of it, or behind it."""
    change, calls = _state._change, 0

    def interrupted(*arguments: object) -> None:
        nonlocal calls
        calls += 1
        if calls != turn or changes:
            change(*arguments)
        if calls == turn:
            raise error

    patch.setattr(_state, "_change", interrupted)


def set_machine_bytes(patch: pytest.MonkeyPatch, nbytes: int) -> None:
    """Pack weights as on a machine of so much memory."""
    patch.setattr(_packing, "machine_bytes", lambda: nbytes)


def set_copy_seconds(patch: pytest.MonkeyPatch, seconds: Iterable[float]) -> None:
    """Have copies that are measured take these seconds, one after the other."""
    given, real = iter(seconds), _copy_times.shortest_run

    def shortest(run: Callable[[], object]) -> float:
        real(run)
        return next(given)

    patch.setattr(_copy_times, "shortest_run", shortest)


def leave_out_rewrite(patch: pytest.MonkeyPatch, name: str) -> None:
    """Trace steps without one rewrite of their graphs."""
    patch.setattr(_rewriting, name, lambda graph, *_: graph)


def set_step_seconds(
    patch: pytest.MonkeyPatch,
    seconds: Callable[[Plan], float],
    margin: float = _reconsidered._MARGIN,
) -> None:
    """Have steps take what a function says of their plan, and a smaller gain count."""
    least = property(lambda self: seconds(self.spec.plan), lambda self, _: None)
    patch.setattr(Program, "least_seconds", least, raising=False)
    patch.setattr(_reconsidered, "_MARGIN", margin)


def follow_steps(
    patch: pytest.MonkeyPatch,
    seconds: Callable[[Program], float],
    least: Callable[[Program], list[float]],
) -> None:
    """Have programs told what a step took, and at least each of its instructions."""
    note = Program._note
    patch.setattr(Program, "_note", lambda self, _: note(self, seconds(self)))
    patch.setattr(Program, "least_of_instructions", lambda self: least(self))


def replace_least(
    patch: pytest.MonkeyPatch, least: Callable[[Program, list[float]], list[float]]
) -> None:
    """Have programs told what each instruction took at least, given what it did."""
    real = Program.least_of_instructions
    patch.setattr(
        Program, "least_of_instructions", lambda self: least(self, real(self))
    )


def measure_nothing_in_steps(patch: pytest.MonkeyPatch) -> None:
    """Have steps tell nothing of what their ops took."""
    patch.setattr(Program, "took", lambda self: {})


def set_rounds(patch: pytest.MonkeyPatch, count: int) -> None:
    """Have learning policies give so many plans at most."""
    patch.setattr(adaptation, "_ROUNDS", count)


def refuse_contenders(patch: pytest.MonkeyPatch) -> None:
    """Fail where a program looks for plans to try in steps."""
    patch.setattr(_executor, "contending", None)


@dataclass(frozen=True)
class Limited(Method):
    """A learning method with a limit of its own, for devices of whole pages."""

    limit: int = 0

    def __call__(self, graph, limit_bytes=None):
        return super().__call__(graph, self.limit)

    @classmethod
    def of(cls, policy, limit):
        first = cls("capuchin", policy.learns.first.make, swaps=True, limit=limit)
        lessons = Lessons(first, _fed_back)
        return cls("capuchin", policy.make, swaps=True, learns=lessons, limit=limit)


def _fed_back(policy: Limited, *happened: object) -> Limited:
    return Limited.of(capuchin_feedback(policy, *happened), policy.limit)


def end_search_at_once(patch: pytest.MonkeyPatch, part: str) -> None:
    """Give a part of `look_ahead` no work: again, orders or parts."""
    patch.setattr(_look_ahead, f"_{part.upper()}", 0)


def ask_always(patch: pytest.MonkeyPatch) -> None:
    """Have searches ask whether they are over as often as they like."""
    patch.setattr(_watch, "_PERIOD", 0.0)


def leave_unproven(patch: pytest.MonkeyPatch) -> None:
    """Have the solver of Checkmate's program end before its answer is proven."""
    patch.setattr(
        _checkmate, "solve", lambda *a, **o: solve(*a, **o)._replace(optimal=False)
    )


def replace_judge_of_stages(
    patch: pytest.MonkeyPatch, judge: Callable[[Graph, Plan], None]
) -> None:
    """Judge what each stage of a composition makes by another function."""
    patch.setattr(_composition, "validate", judge)


def leave_out_downgrades(patch: pytest.MonkeyPatch) -> None:
    """Have no op of vDNN's dynamic ladder take less scratch, one after another."""
    patch.setattr(
        _vdnn,
        "_downgraded",
        lambda request, which: replace(vdnn_all()(request.graph), limit_bytes=64),
    )


def set_cases(
    patch: pytest.MonkeyPatch, cases: dict[str, tuple[int, dict[str, object]]]
) -> None:
    """Have ``memcfg compare`` take networks: names, batch sizes and arguments."""
    tasks = {name: Task(name, *each) for name, each in cases.items()}
    patch.setattr(_compare, "_CASES", tasks)


def note_cells(patch: pytest.MonkeyPatch, note: Callable[[], object]) -> None:
    """Call a function before ``memcfg compare`` plans by a method."""
    plan_cell = _compare.plan_cell
    patch.setattr(_compare, "plan_cell", lambda *a: note() or plan_cell(*a))


def set_methods(patch: pytest.MonkeyPatch, methods: object) -> None:
    """Have ``memcfg plan`` without a method plan by these."""
    patch.setattr(_plans, "POLICIES", methods)


def set_methods_of_ladders(patch: pytest.MonkeyPatch, methods: object) -> None:
    """Have ``memcfg plan --ladder`` know no other methods."""
    patch.setattr(_ladder, "NAMED_POLICIES", methods)


def set_width(patch: pytest.MonkeyPatch, columns: int) -> None:
    """Have tables of methods fit a terminal of so many columns."""
    patch.setattr(_comparison, "width", lambda: columns)


def forget_unknown_variables(patch: pytest.MonkeyPatch) -> None:
    """Warn again of variables of the environment that are unknown."""
    patch.setattr(registry, "_told_unknown", False)


def replace_machine_files(patch: pytest.MonkeyPatch, path: Callable[..., Path]) -> None:
    """Read what the machine has from other files than the kernel's."""
    patch.setattr("memcfg._core._machine.Path", path)


def hide_kernel(patch: pytest.MonkeyPatch) -> None:
    """Have the kernel tell no name of itself, which temporary files bear."""
    patch.setattr(_temporary, "_kernel", lambda: None)


def set_many_entries(patch: pytest.MonkeyPatch, count: int) -> None:
    """Call a folder of so many entries large: it is looked at now and then."""
    patch.setattr(_temporary, "_ENTRIES", count)


def set_seconds_of_ways_out(patch: pytest.MonkeyPatch, **limits: float) -> None:
    """Give refusals so long to search for ways out: `most`, and a `part` of it."""
    for name, value in limits.items():
        patch.setattr(_ways_out, f"_{name.upper()}", value)


def search_no_ways_out(patch: pytest.MonkeyPatch) -> None:
    """Fail where a refusal searches for ways out."""
    patch.setattr(_ways_out._Search, "fits", None)
    patch.setattr(_ways_out._Search, "smallest_limit", None)


def note_ways_out(patch: pytest.MonkeyPatch) -> list[Exception]:
    """List the refusals for which ways out would be searched for."""
    found: list[Exception] = []
    patch.setattr(
        _session, "with_ways_out", lambda error, *_: found.append(error) or error
    )
    return found


def note_planning(patch: pytest.MonkeyPatch) -> list[None]:
    """List how often methods ask whether there is time left to plan."""
    calls: list[None] = []
    patch.setattr(
        _request,
        "check_planning_time",
        lambda: calls.append(None) or _watch.check_planning_time(),
    )
    return calls


def describe_layer(layer: Layer) -> list[dict[str, object]]:
    """List what files say of a layer and of those in it."""
    writer = _Writer()
    return [writer._layer(layer), *writer._layers]


def set_bytes_worth_binding(patch: pytest.MonkeyPatch, nbytes: int) -> None:
    """Bind batches of so many bytes; smaller ones are copied."""
    patch.setattr(_batches, "_WORTH", nbytes)


def set_data_source(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Have data sets come from files of a folder, whatever their hashes are."""
    real = _fetched.get_file

    def get(name: str, origin: str, file_hash: str | None, **options: object) -> str:
        assert file_hash is None or len(file_hash) == 64
        url = (folder / origin.rpartition("/")[2]).as_uri()
        return real(name, url, cache_dir=folder / "cache", **options)

    patch.setattr(_fetched, "get_file", get)


def note_networks(patch: pytest.MonkeyPatch) -> list[object]:
    """List the networks into which chains of layers are joined from now on."""
    made, network = [], _sequential.Network
    patch.setattr(
        _sequential, "Network", lambda *ends: made.append(ends) or network(*ends)
    )
    return made


def trace_layers(
    builder: Builder, end: SymbolicTensor, values: dict[SymbolicTensor, int]
) -> None:
    """Append the ops of the layers behind a symbolic tensor; `values` has the ends."""
    Scope(builder, "function", {}, training=False).trace(calls_to([end]), values, {})


def optimizer_bytes(*given: object) -> object:
    """Return what the steps of a PyTorch optimizer have, as budgets count it."""
    from memcfg.torch.trace import _overhead  # where PyTorch is not, nothing asks

    return _overhead.optimizer_bytes(*given)


def update_bytes(*given: object) -> object:
    """Return what an update of a PyTorch optimizer has, as budgets count it."""
    from memcfg.torch.trace import _overhead

    return _overhead.update_bytes(*given)


def replace_copies_of_gpus(
    patch: pytest.MonkeyPatch, locked: object, streams: object
) -> None:
    """Lock memory and copy as others than CUDA do."""
    from memcfg.torch.spill import _media

    patch.setattr(_media, "PageLocked", locked)
    patch.setattr(_media, "Streams", streams)


def keep_sums_apart(patch: pytest.MonkeyPatch) -> None:
    """Leave sums ops of their own, which products could add."""
    fuse = _rewriting.fuse_products
    patch.setattr(
        _rewriting,
        "fuse_products",
        lambda graph, has: fuse(graph, lambda kind: has(kind) and "_add" not in kind),
    )


def graph_of_predict(model: Model, batch: int) -> Graph:
    """Return the graph of inference on so many rows."""
    return model._built_session().graph(ProgramKey("predict", batch))
