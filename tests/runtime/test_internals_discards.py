"""Pages of the arena that go back before results outside of it are written."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from memcfg import nn
from memcfg.plan import Compute
from memcfg.plan.format import _discards
from memcfg.plan.format._discards import _pages, choose_discards

PAGE = mmap.PAGESIZE
SPANS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 20)).map(
        lambda span: (span[0] * (PAGE // 4), span[1] * (PAGE // 4))
    ),
    max_size=6,
)


@given(written=SPANS, needed=SPANS)
def test_whole_pages_that_nothing_needs_are_chosen(written, needed):
    """As by looking at each quarter of a page."""

    def quarters(spans):
        return {
            at for begin, size in spans for at in range(begin, begin + size, PAGE // 4)
        }

    free = quarters(written) - quarters(needed)
    expected = {
        page for page in range(0, 70 * PAGE, PAGE) if quarters([(page, PAGE)]) <= free
    }
    found = [*_pages(written, needed)]
    assert found == sorted(found)
    assert all(begin % PAGE == size % PAGE == 0 < size for begin, size in found)
    pages = [at for begin, size in found for at in range(begin, begin + size, PAGE)]
    assert len(pages) == len({*pages})
    assert {*pages} == expected


def narrowing():
    """A model whose arena is largest before its first pooling."""
    layers = [nn.Input((64, 64, 4))]
    for filters in (16, 16):
        layers += [nn.Conv2D(filters, 3, padding="same", activation="relu")]
    layers += [nn.MaxPooling2D(2), nn.Conv2D(4, 1), nn.MaxPooling2D(4)]
    return nn.Sequential([*layers, nn.UpSampling2D(8)])


def resident(address, nbytes):
    """The bytes of whole pages that are resident."""
    begin, end = -(-address // PAGE) * PAGE, (address + nbytes) // PAGE * PAGE
    states = (ctypes.c_ubyte * ((end - begin) // PAGE))()
    libc = ctypes.CDLL(None, use_errno=True)
    assert not libc.mincore(
        ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), states
    )
    return PAGE * sum(state & 1 for state in states)


def test_a_process_has_the_pages_of_the_result_or_of_the_arena(monkeypatch):
    monkeypatch.setattr(_discards, "_PART", 100.0)
    nn.set_random_seed(3)
    model = narrowing()
    x = np.random.default_rng(0).random((2, 64, 64, 4), np.float32)
    first = model.predict_on_batch(x)
    executor = model._built_session().executor
    program = executor.prepare("predict, batch 2")
    plan, sizes = program.spec.plan, program.results.sizes
    discards = choose_discards(program.graph, plan, sizes, first.nbytes)
    base = np.frombuffer(program.arena, np.uint8).ctypes.data
    gone = sum(size for _, size in discards.spans)
    assert gone == first.nbytes == 2**17  # all of it can go
    assert isinstance(plan.actions[discards.action], Compute)
    for _ in range(2):
        assert not any(resident(base + at, size) for at, size in discards.spans)
        again = model.predict_on_batch(x)
        assert again.tobytes() == first.tobytes()
    report = model.memory_report(verify=True)
    assert report.measured_peak_bytes == report.predicted_peak_bytes
    model.close()


def test_a_program_whose_time_allows_less_than_half_of_the_result_keeps_its_pages(
    monkeypatch,
):
    model = narrowing()
    x = np.zeros((2, 64, 64, 4), np.float32)
    nbytes = model.predict_on_batch(x).nbytes
    program = model._built_session().executor.prepare("predict, batch 2")
    plan, sizes = program.spec.plan, program.results.sizes

    def gone(part):
        allowed = part * nbytes / (_discards._RATE * plan.elapsed_seconds)
        monkeypatch.setattr(_discards, "_PART", allowed)
        discards = choose_discards(program.graph, plan, sizes, nbytes)
        return sum(size for _, size in discards.spans) if discards else 0

    assert gone(0.49) == 0
    assert nbytes // 2 <= gone(0.6) <= 0.6 * nbytes
    model.close()


def test_a_short_program_keeps_its_pages():
    """Taking them again would take more than a hundredth of its time."""
    model = nn.Sequential([nn.Input((4096,)), nn.ReLU(), nn.Activation("tanh")])
    model.predict_on_batch(np.zeros((64, 4096), np.float32))
    program = model._built_session().executor.prepare("predict, batch 64")
    plan, sizes = program.spec.plan, program.results.sizes
    assert sum(sizes.values()) >= 2**20
    assert choose_discards(program.graph, plan, sizes, 2**20) is None
    model.close()
