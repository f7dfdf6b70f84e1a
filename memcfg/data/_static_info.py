"""What a model asks of a dataset: what is known before a pass, and a pass.

Owns the reading of a pipeline for batch sizes, and the thread that a pipeline without
one gets. Refuses to run a pipeline for what it could tell.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memcfg.data.elements._structure import flatten
from memcfg.data.engine._iterator import DatasetIterator
from memcfg.data.engine._ring import SPARE
from memcfg.data.ops._batch import Batch
from memcfg.data.ops._cache import Cache
from memcfg.data.ops._node import INFINITE
from memcfg.data.ops._padded_batch import PaddedBatch
from memcfg.data.ops._prefetch import AUTOTUNE, Prefetch
from memcfg.data.ops._repeat import Repeat
from memcfg.data.ops._select import Shard, Skip, Take
from memcfg.data.ops._shuffle import Shuffle

if TYPE_CHECKING:
    from memcfg.data._dataset import Dataset
    from memcfg.data.ops._node import Node
    from memcfg.memory import Resource

__all__ = ["BUFFER_SIZE", "Outlook", "begin", "outlook"]

BUFFER_SIZE = 2  # batches that wait for a model; DL4J's queue in `fit`
_FIRST = 1  # batch that lies beside the ring, to tell how large a block is


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is known of a dataset before a pass.

    Parameters
    ----------
    batches : int or None
        How many elements a pass has; None where that is not known.
    endless : bool
        Whether a pass has no end.
    spec : nest of TensorSpec, or None
        What an element is; None where only a pass could tell.
    sizes : tuple of int
        Lengths that batches have, that of a full one first, and perhaps some that none
        has. Empty where they are not known.
    blocks : int
        How many batches there are at a time, the reader's included; at least.
    """

    batches: int | None
    endless: bool
    spec: Any
    sizes: tuple[int, ...]
    blocks: int

    @property
    def buffer_size(self) -> int:
        """How many of the batches wait."""
        return max(0, self.blocks - _FIRST - SPARE)


def outlook(dataset: Dataset) -> Outlook:
    """Tell what is known of a dataset, without running anything.

    Parameters
    ----------
    dataset : Dataset
        The dataset.

    Returns
    -------
    Outlook
        What is known.
    """
    node = _ending_in_prefetch(dataset._node)
    count = node.cardinality
    return Outlook(
        batches=count if count >= 0 else None,
        endless=count == INFINITE,
        spec=None if node.is_probed else node.element_spec,
        sizes=_sizes(node),
        blocks=_blocks(node),
    )


def begin(dataset: Dataset, resource: Resource) -> DatasetIterator:
    """Begin a pass whose batches are prepared by a thread.

    Parameters
    ----------
    dataset : Dataset
        The dataset; one whose last step is no prefetch gets one.
    resource : Resource
        Where its memory comes from.

    Returns
    -------
    DatasetIterator
        The pass, to be closed.
    """
    node = _ending_in_prefetch(dataset._node)
    return DatasetIterator(node, dataset.options(), resource)


def _ending_in_prefetch(node: Node) -> Node:
    if isinstance(node, Prefetch):
        return node
    found = Prefetch(node, BUFFER_SIZE, "ahead")
    vars(found)["hindsight"] = node.hindsight  # passes end there, but for this step
    return found


def _blocks(node: Node) -> int:
    assert isinstance(node, Prefetch)
    if node.buffer_size == 0:
        return 0
    waiting = 1 if node.buffer_size == AUTOTUNE else node.buffer_size
    return _FIRST + waiting + SPARE


def _sizes(node: Node) -> tuple[int, ...]:
    """Find the step that makes batches, if all behind it leave them as they are."""
    while isinstance(node, Prefetch | Take | Skip | Shard | Repeat | Shuffle | Cache):
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
