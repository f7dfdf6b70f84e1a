"""The collectives of ranks of one process against plain sums in the ranks' order."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from communicator_cases import (
    DTYPES,
    check_all_reduce,
    check_all_reduce_encoded,
    check_broadcast,
    check_exchange,
    check_parts,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from memcfg.errors import CommunicationError
from memcfg.parallel import in_process_group

NO_WORK = np.zeros(0, np.uint8)


def run(size, call, timeout=20.0):
    """Call a function with the communicator of each rank, each in a thread."""
    group = in_process_group(size, timeout)
    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(call, each) for each in group]
    errors = [future.exception() for future in futures]
    return errors if any(errors) else [future.result() for future in futures]


SIZES = st.integers(1, 4)
SHAPES = st.lists(st.integers(0, 40), max_size=2).map(tuple)
KINDS = st.lists(st.tuples(SHAPES, st.sampled_from(DTYPES)), min_size=1, max_size=3)


@settings(max_examples=40, deadline=None)
@given(SIZES, KINDS, st.integers(0, 99))
def test_all_reduce_sums_in_the_order_of_ranks(size, kinds, seed):
    shapes, dtypes = zip(*kinds, strict=True)
    assert (
        run(size, lambda each: check_all_reduce(each, shapes, dtypes, seed))
        == [None] * size
    )


@settings(max_examples=40, deadline=None)
@given(SIZES, st.lists(SHAPES, min_size=1, max_size=3), st.integers(0, 99))
def test_encoded_sums_are_in_the_order_of_ranks(size, shapes, seed):
    def call(communicator):
        return check_all_reduce_encoded(communicator, shapes, seed)

    assert all(isinstance(each, int) for each in run(size, call))


def test_values_without_an_encoding_end_the_sums_of_all_ranks():
    def call(communicator):
        array = np.float32([1, 2 if communicator.rank == 1 else 1])
        communicator.all_reduce_encoded([array], NO_WORK)

    errors = run(3, call)
    assert isinstance(errors[1], ValueError)
    assert all(isinstance(errors[rank], CommunicationError) for rank in (0, 2))
    assert "one finite magnitude" in str(errors[0])


@settings(max_examples=40, deadline=None)
@given(SIZES, st.integers(0, 50), st.sampled_from(DTYPES), st.integers(0, 99))
def test_a_sum_in_parts_gathered_is_the_sum(size, length, dtype, seed):
    assert (
        run(size, lambda each: check_parts(each, length, dtype, seed)) == [None] * size
    )


@pytest.mark.parametrize("root", [0, 2])
def test_broadcast_copies_those_of_one_rank(root):
    def call(communicator):
        check_broadcast(communicator, [(3,), ()], ["int64", "float64"], root, 0)

    assert run(3, call) == [None] * 3


def test_exchange_gives_what_all_ranks_have():
    assert run(3, check_exchange) == [None] * 3


def test_a_rank_that_does_not_arrive_is_named_in_time():
    def call(communicator):
        if communicator.rank != 1:
            communicator.all_reduce([np.ones(3)], NO_WORK)

    began = time.monotonic()
    errors = run(3, call, timeout=0.2)
    assert time.monotonic() - began < 10
    assert errors[1] is None
    for error in (errors[0], errors[2]):
        assert isinstance(error, CommunicationError)
        assert error.ranks == (1,)
        assert "rank 1 did not arrive at a collective within 0.2 s" in str(error)


def test_ranks_that_call_different_collectives_all_fail():
    def call(communicator):
        length = 3 + (communicator.rank == 1)
        communicator.all_reduce([np.ones(length)], NO_WORK)

    errors = run(3, call)
    assert all(isinstance(error, CommunicationError) for error in errors)
    assert "differ in the collective" in str(errors[0])


def test_a_failure_ends_the_waiting_of_others_and_all_later_calls():
    def call(communicator):
        if communicator.rank == 1:
            time.sleep(0.05)
            communicator.fail("rank 1 has no data")
        communicator.all_reduce([np.ones(3)], NO_WORK)

    errors = run(2, call)
    assert [str(error) for error in errors] == ["rank 1 has no data"] * 2
    assert all(error.ranks == (1,) for error in errors)
