"""The program loop: order, guards, failures, threads; and the kernels it runs."""

from __future__ import annotations

import math
import mmap
import operator
import threading
import time
import tracemalloc
import weakref

import numpy as np
import pytest
from placed import placed

from memcfg._core import (
    CallbackKernel,
    Counter,
    Kernel,
    OneDNN,
    Pool,
    Program,
    get_num_threads,
    set_num_threads,
)
from memcfg.devices import OperandSpec
from memcfg.errors import KernelError
from memcfg.ops import op_type, op_types


@pytest.fixture
def arena():
    arena = Pool().arena()
    arena.grow(1024)
    return arena


@pytest.fixture
def cells(arena):
    return np.frombuffer(arena, np.float32)


HUGE, STEP = (2**62 + 16,), OperandSpec((), "int64")
LABELS = OperandSpec((5,), "int32")


def make(type_, inputs, outputs, **attributes) -> Kernel:
    """Make a kernel over operands, which are shapes of float32 or specs."""
    specs = (
        [
            each if isinstance(each, OperandSpec) else OperandSpec(each, "float32")
            for each in side
        ]
        for side in (inputs, outputs)
    )
    if type_ in {kind.name for kind in op_types()}:
        attributes = op_type(type_).kernel_attributes(attributes)
    return Kernel(type_, attributes, *specs, None)


def relu(count: int) -> Kernel:
    return make("relu", [(count,)], [(count,)])


def test_kernels_run_in_order(arena, cells):
    program = Program(arena)
    cells[:4] = [-1, 2, -3, 4]
    program.compute(relu(4), [0, 64], [16, 16], None)
    program.compute(relu(4), [64, 128], [16, 16], None)
    assert program.run() == -1
    np.testing.assert_array_equal(cells[32:36], [0, 2, 0, 4])
    assert len(program) == 2
    assert program.arena is arena


def test_empty_program(arena):
    program = Program(arena)
    assert (program.run(), program.run_timed(), len(program)) == (-1, [], 0)


def test_kernel_runs_on_addresses():
    x = np.array([-1, 5], np.float32)
    y = np.zeros(2, np.float32)
    relu(2).run([x.ctypes.data, y.ctypes.data])
    np.testing.assert_array_equal(y, [0, 5])


def test_kernels_that_cannot_be_made():
    for type_, inputs in (("no such op", []), ("relu", []), ("relu", [(-1,)])):
        with pytest.raises(KernelError):
            make(type_, inputs, inputs)
    with pytest.raises(TypeError):
        make("relu", ["x"], ["x"])


def test_library_that_cannot_be_loaded(tmp_path):
    file = tmp_path / "libdnnl.so.3"
    file.write_text("not a library")
    for path in (file, tmp_path / "absent"):
        with pytest.raises(KernelError, match="oneDNN"):
            OneDNN(str(path))


@pytest.mark.parametrize(
    ("offset", "size"),
    [(1024 - 64, 65), (1024, 4), (4, 4), (2**64 - 64, 128), (0, 2**70), (2**70, 4)],
)
def test_places_outside_are_refused(arena, offset, size):
    program = Program(arena)
    with pytest.raises(ValueError, match=r"leave the arena|multiple of 64"):
        program.compute(relu(1), [0, offset], [4, size], None)
    assert (len(program), program.run()) == (0, -1)


def test_kernels_say_what_they_need():
    assert relu(3).operands == [(12, False), (12, True)]
    loss = make("softmax_cross_entropy", [(5, 10), LABELS], [(), (5, 10)])
    assert loss.operands == [(200, False), (20, False), (4, True), (200, True)]
    assert loss.scratch_bytes == 40


def nothing() -> None:
    """Do nothing."""


@pytest.mark.parametrize(
    "kernel",
    [relu(65_536), CallbackKernel(nothing, [2**18], [2**18])],
    ids=["native", "callback"],
)
@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ([2**18, 64], "operand 1 needs 262144 bytes, got 64"),
        ([64, 2**18], "operand 0 needs 262144 bytes, got 64"),
        ([2**18], "2 operands, got 1 places"),
        ([2**18] * 3, "2 operands, got 3 places"),
        ([], "2 operands, got 0 places"),
    ],
)
def test_operands_that_a_kernel_would_pass_are_refused(arena, kernel, sizes, words):
    arena.grow(2**20)
    program = Program(arena)
    with pytest.raises(ValueError, match=words):
        program.compute(kernel, range(0, 2**18 * len(sizes), 2**18), sizes, None)
    assert (len(program), program.run()) == (0, -1)


def test_a_kernel_alone_wants_all_its_operands():
    add = make("add", [(16,), (16,)], [(16,)])
    with pytest.raises(KernelError, match="3 operands, got 1 addresses"):
        add.run([placed(np.zeros(16, np.float32)).ctypes.data])
    loss = make("softmax_cross_entropy_inference", [(5, 10), LABELS], [()])
    room = placed(np.zeros(100, np.float32)).ctypes.data
    with pytest.raises(KernelError, match="40 bytes of scratch"):
        loss.run([room, room, room])


def test_a_callback_of_sizes_that_are_none():
    with pytest.raises(ValueError, match="negative"):
        CallbackKernel(nothing, [-1])
    with pytest.raises(TypeError, match="is an int"):
        CallbackKernel(nothing, (), [4.0])


@pytest.mark.parametrize("offset", [4, 1024, 2**70])
def test_guards_outside_are_refused(arena, offset):
    with pytest.raises(ValueError, match=r"leave the arena|multiple of 64"):
        Program(arena).guard(offset)


@pytest.mark.parametrize(
    ("kernel_type", "inputs", "outputs"),
    [
        ("relu", [HUGE], 1),
        ("relu_gradient", [HUGE] * 2, 1),
        ("add", [HUGE] * 2, 1),
        ("dropout", [HUGE, STEP], 1),
        ("sgd", [HUGE, HUGE, ()], 1),
        ("sgd_momentum", [HUGE, HUGE, HUGE, ()], 2),
        ("adam", [*[HUGE] * 4, (), STEP], 3),
        ("moving_average", [HUGE] * 2, 1),
    ],
)
def test_counts_whose_bytes_no_number_holds(kernel_type, inputs, outputs):
    """Else 2**62 + 16 floats would be declared as 64 bytes."""
    numbers = {"rate": 0.5, "key": 1, "momentum": 0.9, "nesterov": 0}
    betas = {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7}
    with pytest.raises(KernelError, match="too large a shape"):
        make(kernel_type, inputs, [HUGE] * outputs, **numbers, **betas)


def test_malformed_instructions(arena):
    program = Program(arena)
    with pytest.raises(ValueError, match="2 operands, got 2 places and 1 sizes"):
        program.compute(relu(1), [0, 64], [4], None)
    with pytest.raises(ValueError, match="negative"):
        program.compute(relu(1), [0, -64], [4, 4], None)
    with pytest.raises(TypeError, match="neither"):
        program.compute(print, [], [], None)
    with pytest.raises(TypeError, match="is an int"):
        program.compute(relu(1), [0, 64.0], [4, 4], None)
    with pytest.raises(TypeError, match="not callable"):
        CallbackKernel(3)
    assert len(program) == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_guard_stops_before_what_follows(arena, cells, bad):
    calls = []
    program = Program(arena)
    program.compute(CallbackKernel(lambda: calls.append("before")), [], [], None)
    program.guard(64)
    program.compute(CallbackKernel(lambda: calls.append("after")), [], [], None)
    cells[16] = bad
    assert program.run() == 1
    assert calls == ["before"]
    assert program.run(guard=False) == -1
    assert calls == ["before", "before", "after"]
    cells[16] = np.finfo(np.float32).max
    assert program.run() == -1


def test_seconds_of_each_instruction(arena):
    program = Program(arena)
    program.guard(0)
    program.compute(CallbackKernel(lambda: None), [], [], None)
    seconds = program.run_timed()
    assert seconds[0] == 0
    assert seconds[1] > 0


def test_a_run_tells_what_each_instruction_took(arena, cells):
    """Also where updates are one act, and nothing where a guard has stopped it."""
    counter = Counter()
    for undivided in (False, True):
        program = Program(arena)
        program.guard(0)
        pause = [0.02]
        sleeps = CallbackKernel(lambda pause=pause: time.sleep(pause[-1]))
        program.compute(sleeps, [], [], None)
        if undivided:
            program.undivided()
        program.compute(CallbackKernel(lambda: None), [], [], None)
        cells[0] = 1
        assert program.run() == -1
        assert program.least_seconds() == []
        assert program.run(True, None, True) == -1
        first = program.least_seconds()
        assert len(first) == len(program)
        assert first[1] >= 0.019
        assert min(first) >= 0
        pause.append(0)
        assert program.run(True, counter, timed=True) == -1
        least = program.least_seconds()
        assert all(map(operator.le, least, first))
        assert least[1] < first[1]  # of both runs the least
        cells[0] = np.nan
        assert program.run(True, counter, timed=True) == 0
        assert program.least_seconds() == least
        assert program.run() == 0
    assert counter.value == 2


def test_what_is_discarded_is_zero_in_whole_pages():
    page, arena = mmap.PAGESIZE, Pool().arena()
    arena.grow(4 * page)
    cells = np.frombuffer(arena, np.uint8)
    program = Program(arena)
    assert program.discard(64, 2 * page) == 0
    for offset, nbytes in ((0, 4 * page + 1), (4 * page, 64), (4, 64)):
        with pytest.raises(ValueError, match=r"leave the|multiple of 64"):
            program.discard(offset, nbytes)
    assert len(program) == 1
    for _ in range(2):
        cells[:] = 7
        assert program.run() == -1
        assert (cells == 0).nonzero()[0].tolist() == [*range(page, 2 * page)]
    program.fail_at(0)
    with pytest.raises(KernelError, match="instruction 0"):
        program.run()


def test_callback_exception_leaves_run_as_it_is(arena):
    class OwnError(Exception):
        pass

    raised = OwnError("from inside")

    def fail():
        raise raised

    program = Program(arena)
    program.compute(CallbackKernel(fail), [], [], None)
    for run in (program.run, program.run_timed):  # and the program is free again
        with pytest.raises(OwnError) as caught:
            run()
        assert caught.value is raised


def another_arena():
    arena = Pool().arena()
    arena.grow(1024)
    return arena


def test_callbacks_may_use_programs_of_other_arenas(arena):
    other = another_arena()
    cells = np.frombuffer(other, np.float32)
    inner = Program(other)
    inner.compute(relu(1), [0, 64], [4, 4], None)
    outer = Program(arena)
    outer.compute(CallbackKernel(lambda: inner.run() and None), [], [], None)
    cells[0] = 3
    assert outer.run() == -1
    assert cells[16] == 3


def test_two_programs_of_one_arena_are_not_at_work_at_once(arena):
    inner, outer = Program(arena), Program(arena)
    outer.compute(CallbackKernel(lambda: inner.run() and None), [], [], None)
    with pytest.raises(RuntimeError, match="in use by another thread"):
        outer.run()
    assert inner.run() == -1


def test_one_thread_at_a_time(arena):
    entered, leave = threading.Event(), threading.Event()

    def wait():
        entered.set()
        assert leave.wait(60)

    program = Program(arena)
    program.compute(CallbackKernel(wait), [], [], None)
    results = []
    thread = threading.Thread(target=lambda: results.append(program.run()))
    thread.start()
    assert entered.wait(60)
    for use in (program.run, program.run_timed, lambda: program.guard(0)):
        with pytest.raises(RuntimeError, match="in use by another thread"):
            use()
    leave.set()
    thread.join()
    assert (results, program.run(), len(program)) == ([-1], -1, 1)


def test_a_program_cannot_change_or_run_from_within(arena):
    program = Program(arena)
    program.compute(CallbackKernel(program.run), [], [], None)
    with pytest.raises(RuntimeError, match="in use"):
        program.run()


def test_the_gil_is_released(arena):
    """Two programs meet inside their callbacks: neither could if one held the GIL."""
    meeting = threading.Barrier(2, timeout=60)
    programs = []
    for place in (arena, another_arena()):
        program = Program(place)
        program.compute(CallbackKernel(lambda: meeting.wait() and None), [], [], None)
        programs.append(program)
    threads = [threading.Thread(target=program.run) for program in programs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not meeting.broken


def test_running_takes_no_python_memory(arena):
    program = Program(arena)
    program.compute(relu(16), [0, 64], [64, 64], None)
    program.guard(0)
    program.run()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(1000):
            program.run()
        assert tracemalloc.get_traced_memory()[0] - before < 1024
    finally:
        tracemalloc.stop()


def test_operands_stay_while_the_arena_grows(arena, cells):
    program = Program(arena)
    program.compute(relu(1), [0, 64], [4, 4], None)
    arena.grow(50_000_000)
    program.compute(relu(1), [64, 49_999_936], [4, 4], None)
    cells[0] = 5
    assert program.run() == -1
    assert np.frombuffer(arena, np.float32)[49_999_936 // 4] == 5


def test_threads_apply_to_whoever_runs(arena):
    """The count is the process', not of the thread that set it."""
    counts = []
    program = Program(arena)
    program.compute(
        CallbackKernel(lambda: counts.append(get_num_threads())), [], [], None
    )
    before = set_num_threads(1)
    try:
        thread = threading.Thread(target=program.run)
        thread.start()
        thread.join()
        assert counts == [1]
    finally:
        set_num_threads(before)


class TestBinding:
    """Inputs that are read elsewhere; what C++ refuses stands in its own tests."""

    @pytest.fixture
    def bound(self, arena, cells):
        program = Program(arena)
        program.compute(relu(16), [0, 64], [64, 64], None)
        return program, program.input([(0, 0)], 64), cells

    def test_a_bound_input_is_read_and_the_array_is_kept(self, bound):
        program, number, cells = bound
        x = placed(np.arange(16, dtype=np.float32))
        x.flags.writeable = False
        alive = weakref.ref(x.base)
        assert program.bind(number, x)
        program.run()
        np.testing.assert_array_equal(cells[16:32], x)
        assert not cells[:16].any()
        del x
        assert alive() is not None
        program.unbind(number)
        program.unbind(number)
        assert alive() is None
        program.run()
        assert not cells[16:32].any()

    def test_what_is_refused_leaves_what_was_bound(self, bound):
        program, number, cells = bound
        x = placed(np.ones(16, np.float32))
        assert program.bind(number, x)
        for wrong in (placed(x, 4), placed(x)[::-1], x[:8], np.asfortranarray(x[:0])):
            assert not program.bind(number, wrong)
        assert not program.bind(number, cells[:16])
        program.run()
        assert cells[16:32].all()

    def test_wrong_arguments(self, bound):
        program, number, _ = bound
        x = placed(np.ones(16, np.float32))
        for wrong in ([(1, 0)], [(0, 2)], [(0, 0), (0, 1)], []):
            with pytest.raises(ValueError, match="operand"):
                program.input(wrong, 64)
        with pytest.raises(ValueError, match="60 bytes is read as one of 64"):
            program.input([(0, 0)], 60)
        with pytest.raises(ValueError, match="no input 1"):
            program.bind(number + 1, x)
        with pytest.raises(ValueError, match="negative"):
            program.input([(0, -1)], 64)
        with pytest.raises(TypeError):
            program.bind(number, 5)
        with pytest.raises(TypeError):
            program.bind(None, x)
        program.unbind(number)
