"""Division of a convolution's batch: the dynamic program of WR, and Pareto fronts.

Y. Oyama, T. Ben-Nun, T. Hoefler, S. Matsuoka, "Accelerating Deep Learning Frameworks
with Micro-Batches", IEEE CLUSTER 2018, arXiv:1804.04806.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from memcfg.plan.search.algorithms._algorithms import algorithms, micro_batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from memcfg.graph import Algorithm, Graph, Op


class MicroKernel(NamedTuple):
    """Time and scratch of an algorithm for a part of the batch."""

    algorithm: Algorithm  # for the whole batch, in equal parts
    images: int
    seconds: float  # of a part
    scratch_bytes: int


class Divided(NamedTuple):
    """A batch in parts, which run in sequence and share scratch."""

    parts: tuple[MicroKernel, ...]
    seconds: float

    @property
    def scratch_bytes(self) -> int:
        """The largest scratch of a part."""
        return max(part.scratch_bytes for part in self.parts)


def divide_batch(
    images: int, kernels: Iterable[MicroKernel], scratch_bytes: int
) -> Divided | None:
    """Return the fastest division within the scratch, or None if there is none.

    T(0) = 0 and T(n) = min(T(n - b) + t(b)) over the kernels for b images that need at
    most `scratch_bytes`.
    """
    fitting = [each for each in kernels if each.scratch_bytes <= scratch_bytes]
    times: list[tuple[float, MicroKernel | None] | None] = [(0.0, None)]
    for n in range(1, images + 1):
        best: tuple[float, MicroKernel | None] | None = None
        for kernel in fitting:
            rest = times[n - kernel.images] if kernel.images <= n else None
            if rest is not None and (
                best is None or rest[0] + kernel.seconds < best[0]
            ):
                best = rest[0] + kernel.seconds, kernel
        times.append(best)
    parts = []
    n, end = images, times[images]
    if end is None:
        return None
    while n:
        choice = times[n]
        assert choice is not None
        assert choice[1] is not None
        parts.append(choice[1])
        n -= choice[1].images
    return Divided(tuple(parts), end[0])


def desirable(images: int, kernels: Sequence[MicroKernel]) -> list[Divided]:
    """Return WD's desirable divisions: the Pareto front of scratch and time."""
    result: list[Divided] = []
    for size in sorted({kernel.scratch_bytes for kernel in kernels}):
        best = divide_batch(images, kernels, size)
        if best is not None and (not result or best.seconds < result[-1].seconds):
            result.append(best)
    return result


def micro_kernels(graph: Graph, op: Op) -> tuple[int, list[MicroKernel]]:
    """Return the number of images of an op's batch, and the kernels for parts of it.

    If shapes do not tell the number of images, the batch counts as one.
    """
    rows = algorithms(op, divided=True)
    sizes = {size for each in rows if (size := micro_batch(each)) is not None}
    images = _images(graph, op, sizes) if sizes else 1
    if images is None:
        images, rows = 1, algorithms(op)
    return images, [
        MicroKernel(
            each,
            size := micro_batch(each) or images,
            each.seconds * size / images,
            each.scratch_bytes,
        )
        for each in rows
    ]


def algorithm_of(division: Divided, kernels: Sequence[MicroKernel]) -> Algorithm:
    """Return the algorithm with equal parts that is as fast as a division.

    All part sizes divide the batch, so no mixed division is faster than equal parts
    with the kernel of the least time per image.
    """
    size = division.scratch_bytes
    equal = [each.algorithm for each in kernels if each.scratch_bytes <= size]
    return min(equal, key=lambda each: each.seconds)


def _images(graph: Graph, op: Op, sizes: set[int]) -> int | None:
    """Return the batch size: the first axis of the first operand that parts divide."""
    for tensor in (*op.inputs, *op.outputs):
        each = graph.tensors[tensor]
        if each.shape and each.role not in ("parameter", "optimizer_state", "gradient"):
            images = each.shape[0]
            if all(images % size == 0 and images > size for size in sizes):
                return images
    return None
