"""The iterator over a dataset."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

from memcfg import config
from memcfg._core import fork_count
from memcfg.data._options import Options
from memcfg.data._pipeline_report import PipelineReport
from memcfg.data.elements._spec import spec_of, vague
from memcfg.data.engine._run import Run

if TYPE_CHECKING:
    from typing import NoReturn, Self

    from memcfg.data.ops._node import Node
    from memcfg.memory import Resource


class DatasetIterator:
    """One pass over a dataset, as `iter` of a dataset returns it.

    It is its own iterator, and a context manager that closes it. A pass that was not
    closed ends when it is garbage-collected. Several threads may read it.

    Parameters
    ----------
    node : Node
        The last step of the pipeline.
    options : Options
        The options of the dataset.
    resource : Resource, optional
        Resource of the arrays. None: the pool of the current device.
    probing : bool, default False
        Whether the pass is only to find the specs of elements. Such a pass does not
        change the state of shuffles and caches.

    Notes
    -----
    An error ends the pass: the next call of `next` raises StopIteration.
    """

    def __init__(
        self,
        node: Node,
        options: Options,
        resource: Resource | None = None,
        *,
        probing: bool = False,
    ) -> None:
        self._node = node
        pool = config.logical_device(None).host_pool if resource is None else resource
        self._run = Run(pool, options, probing=probing, tuned_state=node.tuned_state)
        self._forks = fork_count()
        self._lock = threading.RLock()
        self._allocator = self._run.allocator()
        self._finalizer = weakref.finalize(self, self._run.close)
        self._elements = node.elements(self._run)

    @property
    def element_spec(self) -> Any:
        """The specs of an element: a nest of `TensorSpec`."""
        return self._node.element_spec

    def report(self) -> PipelineReport:
        """Return threads, buffer and waiting time of each step that has any.

        Returns
        -------
        PipelineReport
            The current state; available after the end, too.
        """
        return PipelineReport(tuple(self._run.reports()))

    def close(self) -> None:
        """End the pass: end its threads and release its buffers.

        Waits for threads; one that is inside a user's function ends when that returns.
        May be called repeatedly, and from another thread than the one that waits in
        `next`, which then raises StopIteration.
        """
        self._run.close(wait=True)
        if fork_count() == self._forks:  # else a parent's thread may hold the lock
            with self._lock:
                self._elements = iter(())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        """Return the next element.

        Raises
        ------
        StopIteration
            At the end.
        ResourceExhaustedError
            If an array does not fit the device's limit.
        RuntimeError
            In a forked child.
        BaseException
            The exception of a function of the pipeline, after the preceding elements.
        """
        if fork_count() != self._forks:
            raise RuntimeError(
                "the pass over this dataset was begun in the process that was forked: "
                "call iter(dataset) in this process"
            )
        with self._lock:
            self._run.wait_timer.begin()
            try:
                with self._allocator:
                    return next(self._elements)
            except BaseException:
                self._run.close()
                self._elements = iter(())
                raise
            finally:
                self._run.wait_timer.end()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a pass over a dataset cannot be copied or pickled: copy the dataset and "
            "call iter() on the copy"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def first_spec(node: Node) -> Any:
    """Return the specs of a step's first element, or None, by a pass that probes."""
    with DatasetIterator(node, Options(), probing=True) as elements:
        for element in elements:
            return spec_of(element)
    return None


def probe(node: Node) -> Any:
    """Return the specs of a step's elements, by running the pipeline for one."""
    spec = first_spec(node)
    if spec is None:
        raise ValueError(
            "the dataset has no element from which to infer element_spec; pass an "
            "output_signature to from_generator"
        )
    return vague(spec)
