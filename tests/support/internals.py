"""What tests of public behaviour need of the inside: a new process, given times.

Beside the doubles of NVIDIA's libraries, this is the one helper for them that imports
private modules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memcfg import _tensorflow_names
from memcfg.commands._digits import load_digits as load_digits
from memcfg.commands._digits import residual_network as residual_network
from memcfg.config._registry import registry
from memcfg.devices import (
    _algorithm_choice,
    _algorithm_times,
    _copy_times,
    _file_cache,
)
from memcfg.devices.cpu._onednn_library import find_onednn as find_onednn
from memcfg.files import _temporary
from memcfg.nn import _sequential
from memcfg.nn._saving import _Writer
from memcfg.nn._saving import backup as backup
from memcfg.nn._saving import restore as restore
from memcfg.nn.inputs import _batches
from memcfg.nn.training import _tracing
from memcfg.nn.training._tracing import ProgramKey
from memcfg.plan import capuchin_feedback
from memcfg.plan.search import Lessons, Method, _reconsidered
from memcfg.plan.search.recompute._replay_elementwise import cheap_ops as cheap_ops
from memcfg.runtime import _packing
from memcfg.runtime._program import Program

DATASET_NAMES = _tensorflow_names.DATASET  # of tf.data, and not here

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    import pytest

    from memcfg.graph import Graph
    from memcfg.nn import Layer, Model
    from memcfg.plan import Plan


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
        "memcfg.devices.cpu._reference.measure_instruction",
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
        "memcfg.devices.cpu._reference.measure_instruction",
        lambda made, sizes, scratch, pool: seconds([*sizes]),
    )


def replace_writing(patch: pytest.MonkeyPatch, write: Callable[..., None]) -> None:
    """Write files of caches by another function, such as one that fails."""
    patch.setattr(_file_cache, "write_atomically", write)


def set_machine_bytes(patch: pytest.MonkeyPatch, nbytes: int) -> None:
    """Pack weights as on a machine of so much memory."""
    patch.setattr(_packing, "machine_bytes", lambda: nbytes)


def set_copy_seconds(patch: pytest.MonkeyPatch, seconds: Iterable[float]) -> None:
    """Have copies that are measured take these seconds, one after the other."""
    given, real = iter(seconds), _copy_times._shortest

    def shortest(run: Callable[[], object]) -> float:
        real(run)
        return next(given)

    patch.setattr(_copy_times, "_shortest", shortest)


def leave_out_rewrite(patch: pytest.MonkeyPatch, name: str) -> None:
    """Trace training steps without one rewrite of their graph."""
    patch.setattr(_tracing, name, lambda graph: graph)


def set_step_seconds(
    patch: pytest.MonkeyPatch, seconds: Callable[[Plan], float], margin: float
) -> None:
    """Have steps take what a function says of their plan, and a smaller gain count."""
    least = property(lambda self: seconds(self.spec.plan), lambda self, _: None)
    patch.setattr(Program, "least_seconds", least, raising=False)
    patch.setattr(_reconsidered, "_MARGIN", margin)


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


def describe_layer(layer: Layer) -> list[dict[str, object]]:
    """List what files say of a layer and of those in it."""
    writer = _Writer()
    return [writer._layer(layer), *writer._layers]


def set_bytes_worth_binding(patch: pytest.MonkeyPatch, nbytes: int) -> None:
    """Bind batches of so many bytes; smaller ones are copied."""
    patch.setattr(_batches, "_WORTH", nbytes)


def note_networks(patch: pytest.MonkeyPatch) -> list[object]:
    """List the networks into which chains of layers are joined from now on."""
    made, network = [], _sequential.Network
    patch.setattr(
        _sequential, "Network", lambda *ends: made.append(ends) or network(*ends)
    )
    return made


def keep_sums_apart(patch: pytest.MonkeyPatch) -> None:
    """Leave sums ops of their own, which products could add."""
    fuse = _tracing.fuse_products
    patch.setattr(
        _tracing,
        "fuse_products",
        lambda graph, has: fuse(graph, lambda kind: has(kind) and "_add" not in kind),
    )


def graph_of_predict(model: Model, batch: int) -> Graph:
    """Return the graph of inference on so many rows."""
    return model._built_session().graph(ProgramKey("predict", batch))
