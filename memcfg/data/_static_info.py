"""The interface of datasets to models: static information, and passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memcfg.data.elements._structure import flatten
from memcfg.data.engine._autotune import AUTOTUNE
from memcfg.data.engine._batch_blocks import SPARE
from memcfg.data.engine._iterator import DatasetIterator
from memcfg.data.ops._batch import Batch
from memcfg.data.ops._cache import Cache
from memcfg.data.ops._node import INFINITE, UnaryNode, require_arrays
from memcfg.data.ops._order import Repeat, Select, Shuffle
from memcfg.data.ops._padded_batch import PaddedBatch
from memcfg.data.ops._prefetch import Prefetch

if TYPE_CHECKING:
    from memcfg.data._dataset import Dataset
    from memcfg.data.ops._node import Node
    from memcfg.memory import Resource

BUFFER_SIZE = 2  # batches that wait for a model, as in the queue of DL4J's `fit`
_FIRST = 1  # the first batch lies outside of the ring: its size sets the block size


@dataclass(frozen=True, slots=True)
class StaticInfo:
    """What is known about a dataset before a pass."""

    batches: int | None  # elements of a pass; None: not known
    endless: bool
    spec: Any  # of an element; None: not known without running a pass
    sizes: tuple[int, ...]  # batch sizes, the full one first; empty: not known
    blocks: int  # min. batches alive at a time on a device, with the reader's
    shuffled: int = 0  # samples in the buffers of shuffles
    numbers: int = 0  # row numbers in the buffers of shuffles

    @property
    def least_blocks(self) -> int:
        """Batches alive at a time where only one waits."""
        return min(self.blocks, _FIRST + 1 + SPARE)

    @property
    def buffer_size(self) -> int:
        """Number of batches that wait in the prefetch buffer of a device."""
        return max(0, self.blocks - _FIRST - SPARE)


def static_info(dataset: Dataset) -> StaticInfo:
    """Return what is known about a dataset, without running its functions."""
    require_arrays(dataset._node, "a model")
    node = _ending_in_prefetch(dataset._node)
    count, sizes = node.cardinality, _sizes(node)
    shuffled, numbers = _shuffled(node, max(sizes, default=1))
    return StaticInfo(
        batches=count if count >= 0 else None,
        endless=count == INFINITE,
        spec=None if node.is_probed else node.element_spec,
        sizes=sizes,
        blocks=_blocks(node),
        shuffled=shuffled,
        numbers=numbers,
    )


def begin(dataset: Dataset, resource: Resource) -> DatasetIterator:
    """Begin a pass, with a prefetch appended if needed; the caller closes it."""
    node = _ending_in_prefetch(dataset._node)
    return DatasetIterator(node, dataset.options(), resource)


def _ending_in_prefetch(node: Node) -> Node:
    if isinstance(node, Prefetch):
        return node
    result = Prefetch(node, BUFFER_SIZE, "ahead")
    # Passes share AUTOTUNE's state through the user's last step: this node is new in
    # every pass.
    vars(result)["tuned_state"] = node.tuned_state
    return result


def _blocks(node: Node) -> int:
    assert isinstance(node, Prefetch)
    if node.buffer_size == 0:
        return 0
    waiting = 1
    if node.buffer_size != AUTOTUNE:
        waiting = -(-node.buffer_size // max(1, len(node.resources)))
    return _FIRST + waiting + SPARE


def _shuffled(node: Node, batch_size: int) -> tuple[int, int]:
    """Count the samples and the row numbers that shuffles hold at a time."""
    samples = numbers = 0
    each = batch_size  # samples of an element
    while isinstance(node, UnaryNode):
        if isinstance(node, Shuffle):
            bounds = [x for x in (node.buffer_size, node.source.cardinality) if x >= 0]
            held = min(bounds, default=0)
            samples += 0 if node.has_rows else held * each
            numbers += held if node.has_rows else 0
        if isinstance(node, Batch | PaddedBatch):
            each = 1
        node = node.source
    return samples, numbers


def _sizes(node: Node) -> tuple[int, ...]:
    """Return the batch sizes, from the step that makes batches or the element spec."""
    while isinstance(node, Prefetch | Select | Repeat | Shuffle | Cache):
        node = node.source
    if isinstance(node, Batch | PaddedBatch):
        return _of_batches(node)
    if node.is_probed:
        return ()
    leaves = flatten(node.element_spec)
    firsts = [leaf.shape[0] if leaf.shape else None for leaf in leaves] or [None]
    alike = firsts.count(firsts[0]) == len(firsts)
    return (firsts[0],) if alike and firsts[0] is not None else ()


def _of_batches(node: Batch | PaddedBatch) -> tuple[int, ...]:
    size, samples = node.batch_size, node.source.cardinality
    if samples < 0:
        return (size,)
    full, rest = divmod(samples, size)
    rest = 0 if node.drop_remainder else rest
    return (size,) * bool(full) + (rest,) * bool(rest)
