"""Batches in parts: WR's dynamic program and WD's front, against all divisions."""

from __future__ import annotations

import math
from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st

from memcfg.graph import Algorithm, Graph, Op, Tensor
from memcfg.plan.methods._micro_batches import (
    MicroKernel,
    algorithm_of,
    desirable,
    divide_batch,
    micro_kernels,
)

MIB = 1 << 20


def kernel(name, images, seconds, scratch):
    return MicroKernel(Algorithm(name, seconds, scratch), images, seconds, scratch)


kernels = st.lists(
    st.builds(
        kernel,
        st.just("a"),
        st.integers(1, 8),
        st.integers(1, 30).map(float),
        st.integers(0, 6),
    ),
    max_size=6,
)


def every_division(images, rows):
    """All multisets of kernels that take so many images."""
    if not images:
        yield ()
        return
    for number, each in enumerate(rows):
        if each.images <= images:
            for rest in every_division(images - each.images, rows[number:]):
                yield (each, *rest)


@given(images=st.integers(1, 10), rows=kernels, scratch=st.integers(0, 6))
@settings(max_examples=200, deadline=None)
def test_no_division_within_the_scratch_is_faster(images, rows, scratch):
    found = divide_batch(images, rows, scratch)
    fitting = [each for each in rows if each.scratch_bytes <= scratch]
    times = [sum(k.seconds for k in parts) for parts in every_division(images, fitting)]
    if found is None:
        assert not times
        return
    assert found.seconds == min(times) == sum(part.seconds for part in found.parts)
    assert sum(part.images for part in found.parts) == images
    assert found.scratch_bytes <= scratch


@given(images=st.integers(1, 9), rows=kernels)
@settings(max_examples=100, deadline=None)
def test_the_front_has_each_division_that_no_other_beats(images, rows):
    found = desirable(images, rows)
    points = {
        (max(k.scratch_bytes for k in parts), sum(k.seconds for k in parts))
        for parts in every_division(images, rows)
    }
    best = [
        (size, time)
        for size, time in points
        if not any(
            (s <= size and t < time) or (s < size and t <= time) for s, t in points
        )
    ]
    assert [(d.scratch_bytes, d.seconds) for d in found] == sorted(best)


def divisors(n):
    return [k for k in range(1, n) if n % k == 0]


@given(
    images=st.integers(2, 48),
    seconds=st.lists(st.integers(1, 10**6), min_size=24, max_size=24),
    most=st.integers(0, 12),
)
@settings(max_examples=200, deadline=None)
def test_equal_parts_are_as_fast_as_any_where_sizes_divide_the_batch(
    images, seconds, most
):
    rows = [
        kernel(f"{name}/{size}", size, float(taken), 1 + place % 7)
        for place, (name, size, taken) in enumerate(
            (name, size, seconds[(2 * place + (name == "b")) % 24])
            for name in "ab"
            for place, size in enumerate(divisors(images))
        )
    ]
    rows.append(kernel("whole", images, 2e7, 0))
    whole = [
        MicroKernel(
            Algorithm(k.algorithm.name, k.seconds * images / k.images, k.scratch_bytes),
            *k[1:],
        )
        for k in rows
    ]
    found = divide_batch(images, whole, most)
    taken = algorithm_of(found, whole)
    assert math.isclose(taken.seconds, found.seconds)
    assert taken.scratch_bytes <= most


def test_a_faster_algorithm_fits_in_parts():
    """Of 256 images one that wants 213 MiB: in 64 MiB, parts of 32 at 49 MiB."""
    rows = [
        kernel("gemm", 256, 10.0, 4096),
        kernel("fft", 256, 3.2, 213 * MIB),
        kernel("fft/32", 32, 0.5, 49 * MIB),
        kernel("fft/64", 64, 0.9, 75 * MIB),
    ]
    assert [k.algorithm.name for k in divide_batch(256, rows, 4096).parts] == ["gemm"]
    found = divide_batch(256, rows, 64 * MIB)
    assert [k.algorithm.name for k in found.parts] == ["fft/32"] * 8
    assert found.seconds == 4.0
    assert divide_batch(256, rows, 75 * MIB).seconds == 3.6
    assert [d.seconds for d in desirable(256, rows)] == [10.0, 4.0, 3.6, 3.2]
    assert divide_batch(256, rows, 4095) is None


def test_mixed_parts_where_sizes_do_not_divide_the_batch():
    rows = [kernel("a", 16, 4.0, 5), kernel("b", 4, 3.0, 1), kernel("c", 1, 1.0, 0)]
    found = divide_batch(21, rows, 5)
    assert sorted(part.algorithm.name for part in found.parts) == ["a", "b", "c"]
    assert found.seconds == 8.0


@cache
def convolution(*shapes, roles=("activation", "parameter", "activation")):
    rows = (Algorithm("im2col", 8.0, 640), Algorithm("im2col/4", 6.0, 320))
    tensors = tuple(
        Tensor(f"t{n}", 64, role, shape)
        for n, (shape, role) in enumerate(zip(shapes, roles, strict=True))
    )
    op = Op("c", "conv2d", "forward", (0, 1), (2,), algorithms=rows)
    return Graph("g", tensors, (op,), keep=(2,))


def test_how_many_images_there_are_is_told_by_shapes():
    image, window = (16, 8, 8, 3), (3, 3, 3, 8)
    graph = convolution(image, window, (16, 8, 8, 8))
    images, found = micro_kernels(graph, graph.ops[0])
    assert images == 16
    assert [(k.images, k.seconds) for k in found] == [(16, 8.0), (4, 1.5)]
    roles = ("parameter", "activation", "activation")
    turned = convolution((8, 8, 3, 8), image, (16, 8, 8, 3), roles=roles)
    assert micro_kernels(turned, turned.ops[0])[0] == 16
    bare = convolution(None, None, None)
    images, found = micro_kernels(bare, bare.ops[0])
    assert (images, [k.algorithm.name for k in found]) == (1, ["im2col"])
