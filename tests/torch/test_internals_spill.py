"""The store of tensors that leave: one contract, as planned steps and as saved tensors.

Both take extents of a store and begin copies; what they tell it differs in the piece of
memory that it takes at a time, and in what copies.
"""

from __future__ import annotations

import gc
import os
import signal
import sys

import late_copies
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from interrupted_lines import Ends

from memcfg.errors import ResourceExhaustedError
from memcfg.torch.budget import _swaps
from memcfg.torch.spill._media import Files, HostMemory
from memcfg.torch.spill._store import Store

PAGE = 4096
LIMIT = 16 * PAGE
CPU = torch.device("cpu")
USERS = {
    "planned steps": lambda folder: Store(Files(folder), LIMIT),
    "saved tensors": lambda folder: Store(Files(folder), LIMIT, least_bytes=LIMIT),
    "planned steps of a GPU": lambda _: Store(HostMemory(CPU), LIMIT),
    "saved tensors of a GPU": lambda _: Store(HostMemory(), LIMIT, least_bytes=LIMIT),
}


@pytest.fixture(params=USERS)
def store(request, tmp_path, monkeypatch):
    late_copies.install(monkeypatch)
    return USERS[request.param](str(tmp_path))


@pytest.fixture
def file_store(tmp_path):
    return Store(Files(str(tmp_path)))


def numbers(nbytes, first=0):
    return (torch.arange(nbytes) + first).to(torch.uint8)


def back(extent, nbytes, at=0):
    """The bytes of an extent."""
    target = torch.zeros(nbytes, dtype=torch.uint8)
    extent.copy_in(target, at).wait()
    return target


def test_parts_of_an_extent_come_back_in_any_order(store):
    extent, other = store.take(3 * PAGE), store.take(PAGE)
    copies = [extent.copy_out(numbers(PAGE, at), at * PAGE) for at in (2, 0, 1)]
    copies.append(other.copy_out(numbers(PAGE, 9)))
    for each in copies:
        each.wait()
        each.wait()  # again changes nothing
    for at in (1, 2, 0):
        assert torch.equal(back(extent, PAGE, at * PAGE), numbers(PAGE, at))
    assert torch.equal(back(other, PAGE), numbers(PAGE, 9))


def test_the_limit_refuses_and_what_is_dropped_is_given_again(store):
    held = [store.take(4 * PAGE) for _ in range(4)]
    assert all(held)
    assert store.take(1) is None
    assert store.take(LIMIT + 1) is None
    assert store.in_use == store.nbytes == LIMIT
    del held[1]
    assert store.in_use == LIMIT - 4 * PAGE
    assert store.take(5 * PAGE) is None
    held.append(store.take(4 * PAGE))
    assert held[-1] is not None
    held.clear()
    assert store.take(LIMIT) is not None
    assert store.in_use == 0
    assert store.nbytes == LIMIT


def test_a_copy_that_is_dropped_ends_before_its_memory_is_anothers(store):
    source = numbers(PAGE, 3)
    extent = store.take(PAGE)
    copy = extent.copy_out(source)
    del copy
    source.zero_()
    assert torch.equal(back(extent, PAGE), numbers(PAGE, 3))
    copy = extent.copy_in(torch.empty(PAGE, dtype=torch.uint8))
    del extent
    assert store.in_use == PAGE  # the copy holds it
    del copy
    assert store.in_use == 0


def exit_code(run):
    """What a child of a fork returns."""
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        code = 1
        try:
            code = run()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_the_child_of_a_fork_has_its_own_bytes_and_not_its_parents(store):
    extent = store.take(PAGE)
    extent.copy_out(numbers(PAGE)).wait()

    def child():
        with pytest.raises(RuntimeError, match="forked after tensors had left"):
            extent.copy_in(numbers(PAGE))
        with pytest.raises(RuntimeError, match="forked after tensors had left"):
            extent.copy_out(numbers(PAGE))
        own = store.take(PAGE)
        own.copy_out(numbers(PAGE, 1)).wait()
        return 0 if torch.equal(back(own, PAGE), numbers(PAGE, 1)) else 2

    with store._lock:  # as another thread would have it
        assert exit_code(child) == 0
    assert torch.equal(back(extent, PAGE), numbers(PAGE))


@pytest.mark.filterwarnings("error")  # nor does what was half made complain
def test_an_interrupt_at_any_line_loses_no_bytes(store):
    line, ended = 1, True
    while ended:
        held = store.take(PAGE)
        sys.settrace(Ends(line))
        try:
            extent = store.take(PAGE)
            extent.copy_out(numbers(PAGE)).wait()
            ended = False
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
            extent = None
        assert store.in_use == PAGE, line
        held = None
        assert store.in_use == 0, line
        assert store.nbytes <= LIMIT, line
        line += 1
    assert held is None
    assert line > 10
    assert store.take(LIMIT) is not None


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 6 * PAGE)), max_size=40))
def test_a_piece_of_memory_is_given_out_by_first_fit(tmp_path_factory, steps):
    """Beside a set of pages: no extents overlap, and first fit finds a gap if any."""
    pages = LIMIT // PAGE
    store = USERS["saved tensors"](str(tmp_path_factory.getbasetemp()))
    held = []
    for number, (drop, nbytes) in enumerate(steps):
        if drop and held:
            held.pop(nbytes % len(held))
            continue
        taken = {at for begin, count, *_ in held for at in range(begin, begin + count)}
        need = -(-nbytes // PAGE)
        starts = [
            start
            for start in range(pages - need + 1)
            if taken.isdisjoint(range(start, start + need))
        ]
        data = torch.full((nbytes,), number, dtype=torch.uint8)
        extent = store.take(nbytes)
        assert (extent is None) == (not starts)
        if extent is not None:
            extent.copy_out(data).wait()
            assert extent.offset == PAGE * starts[0]
            held.append((starts[0], need, extent, data))
            assert store.in_use == PAGE * (len(taken) + need)
        del extent
    for *_, extent, data in held:
        assert torch.equal(back(extent, data.numel()), data)


def test_memory_that_is_too_small_is_made_anew(tmp_path):
    store = USERS["planned steps"](str(tmp_path))
    for nbytes in (1000, 9000, 5000):
        assert store.take(nbytes).nbytes >= nbytes
    assert store.nbytes == 9000  # to the byte; the last one found room
    held = store.take(9000)
    store.take(1000)
    assert store.nbytes == 10000
    assert held.offset == 0


# -- the calls of emitted graphs -------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_what_leaves_comes_back_whatever_else_does(tmp_path_factory, data):
    """Beside copies of the tensors: places in an extent that no two have at a time."""
    store = Store(Files(str(tmp_path_factory.getbasetemp())))
    number = _swaps.register(store)
    assert _swaps.register(store) == number
    region = _swaps.spill_region(number, 8 * PAGE)
    places = [*range(8)]
    away, there = [], []
    for at in range(data.draw(st.integers(1, 24))):
        if places and data.draw(st.booleans()):
            place = places.pop(data.draw(st.integers(0, len(places) - 1)))
            base = torch.arange(at, at + 1024, dtype=torch.float32)
            views = [base[8:].view(8, 127).t(), base[:4].view(torch.int32)]
            copies = [each.clone() for each in views]
            token = _swaps.swap_out(region, views, place * PAGE, PAGE)
            del base, views
            if data.draw(st.booleans()):
                token = _swaps.swapped_out(token)
            away.append((place, token, copies))
        elif away:
            place, token, copies = away.pop(data.draw(st.integers(0, len(away) - 1)))
            there.append((place, _swaps.swap_in(token), token, copies))
        if there and data.draw(st.booleans()):
            place, raw, token, copies = there.pop()
            found = [_swaps.swapped_in(raw, token, n) for n in (0, 1)]
            assert all(map(torch.equal, found, copies))
            assert found[0].stride() == (1, 127)
            assert len({each.untyped_storage()._cdata for each in found}) == 1
            places.append(place)
    token = raw = found = None
    del region, away, there, token, raw, found
    assert store.in_use == 0


def test_a_tensor_that_is_larger_than_planned_stays(file_store):
    region = _swaps.spill_region(_swaps.register(file_store), PAGE)
    x = torch.randn(1024)
    with pytest.warns(RuntimeWarning, match="4096 bytes was planned with 64"):
        token = _swaps.swap_out(region, [x], 0, 64)
    token = _swaps.swapped_out(token)
    assert _swaps.swapped_in(_swaps.swap_in(token), token, 0) is x


def test_the_child_of_a_fork_does_not_read_what_its_parent_has(file_store):
    number = _swaps.register(file_store)
    region = _swaps.spill_region(number, PAGE)
    x = torch.arange(1024.0)
    token = _swaps.swapped_out(_swaps.swap_out(region, [x], 0, PAGE))

    def child():
        with pytest.raises(RuntimeError, match="forked"):
            _swaps.swap_in(token)
        other = _swaps.spill_region(number, PAGE)
        mine = _swaps.swapped_out(_swaps.swap_out(other, [x + 1], 0, PAGE))
        found = _swaps.swapped_in(_swaps.swap_in(mine), mine, 0)
        return 0 if torch.equal(found, x + 1) else 2

    assert exit_code(child) == 0
    assert torch.equal(_swaps.swapped_in(_swaps.swap_in(token), token, 0), x)


def test_steps_that_fail_half_way_leave_no_copy_behind(tmp_path):
    store = Store(Files(str(tmp_path), 2.0**20))  # slow: in flight
    number = _swaps.register(store)
    region = _swaps.spill_region(number, 2**18)
    token = _swaps.swap_out(region, [torch.zeros(2**16)], 0, 2**18)
    raw = _swaps.swap_in(token)
    del raw, token, region
    gc.collect()
    assert store.in_use == 0


def test_a_pass_without_room_is_refused_with_what_to_do(tmp_path):
    store = USERS["planned steps"](str(tmp_path))
    held = store.take(LIMIT)
    with pytest.raises(ResourceExhaustedError, match="raise spill_limit") as caught:
        _swaps.extent_of(store, PAGE)
    assert caught.value.limit_bytes == caught.value.in_use_bytes == held.nbytes
