"""The parts of saved tensors: which bytes of a file are free, and what passes know."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memcfg.torch.saved._account import ENCODED, KEPT, Account
from memcfg.torch.saved._codes import PIECE, Code, Encoder, decode
from memcfg.torch.saved._passes import Passes

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
