"""One kernel in many hands: threads and programs that share it see their own operands.

What each gets is compared with a kernel that nobody shares.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate

import numpy as np
import pytest
from kernels import onednn
from placed import placed

from memcfg._core import Kernel, Pool, Program, set_num_threads
from memcfg.devices import OperandSpec
from memcfg.units import align_up

CONVOLUTION = {
    "strides": (1, 1),
    "padding": ((1, 1), (1, 1)),
    "dilation": (1, 1),
    "groups": 1,
}
IMAGE, WINDOW = (1, 4, 4, 8), (3, 3, 8, 8)  # small: what is shared counts
SPECS = [
    ("conv2d", [IMAGE, WINDOW, IMAGE]),
    ("conv2d_gradient_kernel", [IMAGE, IMAGE, WINDOW]),
    ("conv2d_gradient_input", [WINDOW, IMAGE, IMAGE]),
    ("dense", [(8, 8), (8, 8), (8, 8)]),
    ("dense", [(300, 4), (4, 260), (300, 260)]),  # in blocks of rows
    ("dense_gradient_kernel", [(4, 300), (4, 260), (300, 260)]),  # transposed
    ("dense_gradient_input", [(8, 8), (8, 8), (8, 8)]),
]
HANDS, ROUNDS = 2, 10


@pytest.fixture(scope="module")
def library():
    return onednn()


@pytest.fixture(autouse=True)
def _one_thread_each():
    before = set_num_threads(1)
    yield
    set_num_threads(before)


def make_kernel(kernel_type, shapes, library):
    *inputs, output = (OperandSpec(shape, "float32") for shape in shapes)
    return Kernel(kernel_type, CONVOLUTION, inputs, [output], library)


class Hand:
    """Operands of its own, and what a kernel of its own makes of them."""

    def __init__(self, kernel_type, shapes, library, seed):
        own = make_kernel(kernel_type, shapes, library)
        generator = np.random.default_rng(seed)
        self.inputs = [
            placed(generator.standard_normal(nbytes // 4, np.float32))
            for nbytes, written in own.operands
            if not written
        ]
        self.output = placed(np.zeros(own.operands[-1][0] // 4, np.float32))
        self.scratch = placed(np.zeros(own.scratch_bytes + 64, np.uint8))
        self.expected = self.run(own).copy()

    def run(self, kernel):
        self.output[:] = 0
        operands = [*self.inputs, self.output]
        addresses = [operand.ctypes.data for operand in operands]
        kernel.run(addresses, self.scratch.ctypes.data)
        return self.output

    def program(self, kernel):
        """Give a program that runs the kernel many times, and what it makes."""
        sizes = [nbytes for nbytes, _ in kernel.operands]
        lines = [align_up(nbytes) for nbytes in sizes]
        copies = min(200, 2**21 // lines[-1])
        *offsets, first, scratch = accumulate(
            [*lines[:-1], copies * lines[-1]], initial=0
        )
        arena = Pool().arena()
        arena.grow(scratch + max(kernel.scratch_bytes, 64))
        program = Program(arena)
        place = scratch if kernel.scratch_bytes else None
        for copy in range(copies):
            where = [*offsets, first + copy * lines[-1]]
            program.compute(kernel, where, sizes, place)
        cells = np.frombuffer(arena, np.float32)
        for offset, array in zip(offsets, self.inputs, strict=True):
            cells[offset // 4 :][: array.size] = array
        made = cells[first // 4 : scratch // 4].reshape(copies, -1)
        return program, made[:, : self.output.size]


def work_together(works):
    meeting = threading.Barrier(len(works))

    def go(work) -> bool:
        meeting.wait()
        return all(work() for _ in range(ROUNDS))

    with ThreadPoolExecutor(len(works)) as threads:
        return list(threads.map(go, works))


@pytest.mark.parametrize(("kernel_type", "shapes"), SPECS)
def test_threads_share_a_kernel(library, kernel_type, shapes):
    kernel = make_kernel(kernel_type, shapes, library)
    hands = [Hand(kernel_type, shapes, library, seed) for seed in range(HANDS)]
    works = [
        lambda hand=hand: np.allclose(hand.run(kernel), hand.expected, 1e-4, 1e-4)
        for hand in hands
    ]
    assert work_together(works) == [True] * HANDS


@pytest.mark.parametrize(("kernel_type", "shapes"), SPECS)
def test_programs_share_a_kernel(library, kernel_type, shapes):
    kernel = make_kernel(kernel_type, shapes, library)
    hands = [Hand(kernel_type, shapes, library, seed) for seed in range(HANDS)]

    def work_of(hand):
        program, made = hand.program(kernel)

        def work() -> bool:
            made[:] = 0
            program.run()
            return np.allclose(made, hand.expected, 1e-4, 1e-4)

        return work

    assert work_together([work_of(hand) for hand in hands]) == [True] * HANDS


def test_a_kernel_is_made_for_the_threads_that_are_set(library):
    kind = "conv2d_gradient_kernel"
    shapes = [(32, 14, 14, 6), (32, 14, 14, 16), (3, 3, 6, 16)]
    hands = []
    for threads in (1, 4):
        set_num_threads(threads)
        hands.append(Hand(kind, shapes, library, 3))
    one, four = hands
    assert one.scratch.size < four.scratch.size  # a sum for each thread
    np.testing.assert_allclose(one.expected, four.expected, rtol=1e-4, atol=1e-3)
