"""The store of tensors that leave, planned or saved, and what passes know of them.

Both take extents of a store and begin copies; what they tell it differs in the piece of
memory that it takes at a time, and in what copies.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import late_copies
import numpy as np
import pytest
import torch
from calls import traced
from hypothesis import given, settings
from hypothesis import strategies as st
from interrupted_lines import Ends

from memcfg.errors import ResourceExhaustedError
from memcfg.torch.budget import _swaps
from memcfg.torch.saved._account import ENCODED, KEPT, Account
from memcfg.torch.saved._codes import PIECE, Code, Encoder, decode
from memcfg.torch.saved._passes import Passes
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
        try:
            with traced(Ends(line)):
                extent = store.take(PAGE)
                extent.copy_out(numbers(PAGE)).wait()
                ended = False
        except KeyboardInterrupt:
            pass
        finally:
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


# -- saved tensors -------------------------------------------------------------------

EXAMPLE = Path(__file__).parents[2] / "examples" / "38_torch_saved_tensors.py"


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 400)), max_size=60))
def test_an_account_is_the_sum_of_what_lives_and_never_above_its_limit(steps):
    account, held, peak = Account(1000), [], 0
    for drop, nbytes in steps:
        if drop and held:
            held.pop(nbytes % len(held))
        else:
            total = sum(each.nbytes for each in held)
            charge = account.charge(KEPT if nbytes % 2 else ENCODED, nbytes)
            assert (charge is None) == (total + nbytes > 1000)
            if charge is not None:
                held.append(charge)
            del charge
        total = sum(each.nbytes for each in held)
        peak = max(peak, total)
        assert account.settle() == total == sum(account.by_kind.values())
        assert account.room() == 1000 - total
        assert account.peak == peak


@pytest.mark.parametrize("extra", [0, 1, 4097])
def test_codes_of_several_pieces_are_whole_or_not_there(extra):
    random = np.random.default_rng(0)
    source = random.integers(0, 256, 3 * PIECE + extra, np.uint8)
    source[random.random(source.size // 4 + 1).repeat(4)[: source.size] < 0.8] = 0
    needed = Encoder(Account(2**40)).encode("zvc", source)
    assert isinstance(needed, Code)
    for spare in (-64, 0):
        account = Account(needed.held_bytes + spare)
        encoder = Encoder(account)
        code = encoder.encode("zvc", source)
        if spare < 0:
            assert code is True  # for want of room
            assert account.settle() == encoder.pool_bytes == 0
            continue
        assert isinstance(code, Code)
        assert account.settle() == encoder.pool_bytes == code.held_bytes
        found = np.empty_like(source)
        decode("zvc", code.pieces(), found)
        assert np.array_equal(found, source)
    dense = random.integers(1, 256, 9 * PIECE, np.uint8)
    assert encoder.encode("zvc", dense) is False
    assert encoder.pool_bytes == code.held_bytes


def test_passes_know_lifetimes_orders_and_refusals_of_the_last_one():
    passes = Passes()
    for number in range(3):
        passes.begin()
        records = [passes.add(nbytes) for nbytes in (10, 1000, 100)]
        weights = [
            passes.weight(i, each, each.nbytes) for i, each in enumerate(records)
        ]
        if number == 0:
            assert weights == [(10, 0), (1000, -1), (100, -2)]
            assert passes.next_after(2, 5) == [1, 0]
        else:  # read in the order 1, 0, 2, and 0 again
            assert weights == [(10 * 7, 0), (1000 * 3, -1), (100 * 4, -2)]
            assert passes.next_after(1, 5) == [0, 2]
            assert passes.next_after(2, 5) == []
            assert records[1].refused == {"zvc"}
        records[1].refused.add("zvc")
        for index in (1, 0, 2, 0):
            passes.read(index, records[index])
    passes.begin()
    passes.add(10)
    other = passes.add(999)  # from here on it is not known
    assert passes.weight(1, other, 999) == (999, -1)
    assert other.refused == set()
    passes.read(0, records[0])  # of an earlier pass
    assert not passes.was_read


def test_what_an_earlier_pass_saved_has_no_known_lifetime():
    passes = Passes()
    earlier = [passes.add(10) for _ in range(3)]
    for _ in range(2):
        passes.read(0, passes.records[0])
        passes.begin()
        passes.add(10)
    assert passes.weight(2, earlier[2], 10) == (10, -2)  # longer than the last pass
    assert passes.weight(0, earlier[0], 30) == (30, 0)  # whose own first it is not
    assert passes.weight(0, passes.records[0], 30) == (60, 0)


def test_codecs_that_saved_too_little_are_tried_again_later():
    passes, tried = Passes(), []
    for _ in range(40):
        passes.begin()
        record = passes.add(10)
        tried.append("zvc" not in record.refused)
        record.refused.add("zvc")
        passes.read(0, record)
    assert [at for at, each in enumerate(tried) if each] == [0, 16, 32]


def test_the_example_runs(tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLE)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "the same bits" in done.stdout
    assert list(tmp_path.iterdir()) == []
