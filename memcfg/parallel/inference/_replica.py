"""A worker's model, which computes requests one batch at a time."""

from __future__ import annotations

from contextvars import Context
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from memcfg.config._logical import choose_device
from memcfg.nn.training._tracing import ProgramKey
from memcfg.parallel.inference._inference_request import InferenceRequest
from memcfg.workspaces import check_valid

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from weakref import ref

    from memcfg.nn import Model
    from memcfg.parallel.inference._batch_sizes import BatchSizes
    from memcfg.parallel.inference._lease import Lease

__all__ = ["Replica"]

Array = npt.NDArray[Any]
_Shapes = tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]  # of `InferenceRequest.key`
_REMEMBERED = 64  # shapes of requests whose batch sizes are kept


class Replica:
    """A model on a device, and who computes on it now.

    It computes in a context of its own, in which its device is chosen and no workspace
    is open, so outputs are plain arrays whatever the caller's thread has open. Only the
    holder may compute.
    """

    def __init__(self, model: Model, device: str) -> None:
        self.model = model
        self.device = device
        self.holder: ref[Lease] | None = None
        self.freed = 0  # number of the last time when it became free
        self.requests = 0  # answered
        self.batches = 0
        self.rows = 0  # samples, without padding
        self.padding = 0  # samples
        self._context = Context()
        self._context.run(choose_device, device)
        self._sizes_of: Callable[[_Shapes], BatchSizes] | None = None
        self._passed: dict[tuple[tuple[int, ...], np.dtype[Any]], None] = {}
        self._sizes: dict[_Shapes, BatchSizes] = {}
        self._fixed: BatchSizes | None = None

    def is_free(self) -> bool:
        """Return whether nobody holds it; an interrupted caller holds it no longer."""
        return self.holder is None or self.holder() is None

    def renew(self) -> None:
        """Free it in the child of a fork, where a lost thread may be in its context."""
        self.holder = None
        self._context = self._context.copy()

    def use_sizes(
        self, fixed: BatchSizes | None, sizes_of: Callable[[_Shapes], BatchSizes]
    ) -> None:
        """Set the sizes of batches: fixed ones, or those for the shapes of requests."""
        self._fixed = fixed
        self._sizes_of = sizes_of

    def sizes(self, shapes: _Shapes) -> BatchSizes:
        """Return the sizes of batches of requests with these shapes."""
        if self._fixed is not None:
            return self._fixed
        if shapes not in self._sizes:
            if len(self._sizes) >= _REMEMBERED:
                self._sizes.clear()
            assert self._sizes_of is not None
            context = self._context.copy()  # its own may be entered
            self._sizes[shapes] = context.run(self._sizes_of, shapes)
        return self._sizes[shapes]

    def known_limit(self, shapes: _Shapes) -> int | None:
        """Return the most samples of a batch, if it is known already."""
        known = self._fixed if self._fixed is not None else self._sizes.get(shapes)
        return None if known is None else known.limit

    def load(self, sizes: Sequence[int], promised: int) -> None:
        """Load the programs of some sizes, leaving bytes of the device to others."""
        session = self.model._built_session()
        keys = [ProgramKey("predict", size) for size in reversed(sizes)]
        self._context.run(session.require, keys, promised)

    def arrays(self, x: Any) -> Sequence[Array]:
        """Return an array for each input, with the checks of `predict_on_batch`.

        Shapes that have passed are known, unless the model checks values as well.
        """
        if type(x) is np.ndarray and (x.shape[1:], x.dtype) in self._passed and len(x):
            check_valid(x, "read x")
            return (x,)
        result = self.model._checked(x)
        first = result[0]
        if len(result) == 1 and first is x and not self._checks_values():
            if len(self._passed) >= _REMEMBERED:
                self._passed.clear()
            self._passed[first.shape[1:], first.dtype] = None
        return result

    def _checks_values(self) -> bool:
        """Return whether the model checks more of its inputs than shapes."""
        wanted = self.model._built_session().wanted(labelled=False)
        return any(each.table is not None for each in wanted.xs)

    def output(self, x: Any) -> Any:
        """Return the outputs of a caller's samples, which nobody has checked."""
        fixed, run = self._fixed, self._context.run
        if fixed is not None and type(x) is np.ndarray and x.ndim > 1:
            rows = len(x)
            if fixed.is_exact(rows):
                try:
                    result = run(self.model.predict_on_batch, x)
                except MemoryError:
                    if rows == 1:
                        raise
                else:
                    self.requests += 1
                    self.batches += 1
                    self.rows += rows
                    return result
        (result,) = run(self._outputs, [InferenceRequest(self.arrays(x))])
        self.requests += 1
        return result

    def compute(self, requests: Sequence[InferenceRequest]) -> None:
        """Answer requests in one batch; if that fails, each on its own."""
        requests = [each for each in requests if each.begin()]
        if not requests:
            return
        try:
            outputs = self._context.run(self._outputs, requests)
        except BaseException as error:
            if len(requests) == 1:
                requests[0].fail(error)
                return
        else:
            self.requests += len(requests)
            for each, output in zip(requests, outputs, strict=True):
                each.settle(output)
            return
        for each in requests:
            self.compute([each])

    def _outputs(self, requests: Sequence[InferenceRequest]) -> list[Any]:
        """Return the outputs of requests, each in arrays of its own."""
        network = self.model._built_network()
        first = requests[0]
        sizes = self.sizes(first.key)
        inputs = [
            list(each) for each in zip(*(r.arrays for r in requests), strict=True)
        ]
        rows = sum(each.rows for each in requests)
        if rows <= sizes.limit or network.mixes_samples(training=False):
            outputs = self._run(inputs, rows, sizes)
        else:
            outputs = self._joined(inputs, _ranges(rows, sizes.limit), sizes)
        if len(requests) == 1:
            return [network.gives.pack(outputs)]
        result, begin = [], 0
        for each in requests:
            own = slice(begin, begin + each.rows)
            begin = own.stop
            result.append(network.gives.pack([out[own].copy() for out in outputs]))
        return result

    def _run(
        self, inputs: Sequence[list[Array]], rows: int, sizes: BatchSizes
    ) -> list[Array]:
        """Compute a batch; where memory does not suffice, compute its halves."""
        network, size = self.model._built_network(), sizes.round_up(rows)
        arrays = [_stacked(parts, size) for parts in inputs]
        try:
            given = self.model.predict_on_batch(network.takes.pack(arrays))
        except MemoryError:
            if rows == 1 or network.mixes_samples(training=False):
                raise
        else:
            self.batches += 1
            self.rows += rows
            self.padding += size - rows
            outputs = network.gives.unpack(given, "the outputs", "outputs")
            return outputs if size == rows else [out[:rows] for out in outputs]
        whole = [[array[:rows]] for array in arrays]
        return self._joined(whole, _ranges(rows, -(-rows // 2)), sizes)

    def _joined(
        self, inputs: Sequence[list[Array]], ranges: Sequence[slice], sizes: BatchSizes
    ) -> list[Array]:
        """Return the outputs of parts of one request, or of one batch, as a whole."""
        parts = [
            self._run(
                [[each[rows]] for (each,) in inputs], rows.stop - rows.start, sizes
            )
            for rows in ranges
        ]
        return [np.concatenate(each) for each in zip(*parts, strict=True)]


def _ranges(rows: int, size: int) -> list[slice]:
    """Divide rows into ranges of a size; the last one may be shorter."""
    return [slice(begin, min(begin + size, rows)) for begin in range(0, rows, size)]


def _stacked(parts: Sequence[Array], size: int) -> Array:
    """Return the rows of arrays as one array of a size, filled up with zeros."""
    rows = sum(map(len, parts))
    if len(parts) == 1 and rows == size:
        return parts[0]
    result = np.empty((size, *parts[0].shape[1:]), parts[0].dtype)
    np.concatenate(parts, out=result[:rows])
    result[rows:] = 0
    return result
