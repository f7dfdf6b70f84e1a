"""Inputs read where they lie: the same bits, no copy, nothing written, nothing kept."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
from interpreter import random_values
from networks import (
    NETWORKS,
    chain,
    starts_flat,
    starts_in_place,
)
from placed import locked, placed

import memcfg as mc
from memcfg import plan as planning
from memcfg.errors import KernelError
from memcfg.graph import Builder
from memcfg.runtime import OWN_BUFFERS, Executor

POLICIES = {
    "keep_all": planning.keep_all(),
    "share": planning.share(),
    "replay_elementwise": planning.replay_elementwise(),
    "sqrt_checkpoint": planning.sqrt_checkpoint(),
}
MODES = {"planned": {}, "own buffers": {"train": OWN_BUFFERS}}


GRAPHS = {**NETWORKS, "flat": starts_flat, "in place": starts_in_place}


@pytest.fixture
def device():
    found = mc.config.logical_device()
    yield found
    assert found.pool.stats().current_bytes == 0


def arrays(graph, values):
    """Name the inputs that are arrays, with their values."""
    return {
        t.name: values[t.name]
        for i, t in enumerate(graph.tensors)
        if t.role == "input" and graph.producer[i] is None and t.shape
    }


def loaded(device, graph, values, policy=None, modes=None):
    executor = Executor(device, name="model")
    executor.load({"train": graph}, policy or planning.share(), values, modes or {})
    return executor


def feed_scalars(executor, graph, values, number):
    for i, tensor in enumerate(graph.tensors):
        if tensor.role == "input" and graph.producer[i] is None and not tensor.shape:
            value = np.int64(number) if tensor.name == "step" else values[tensor.name]
            executor.feed("train", tensor.name)[...] = value


def train(executor, graph, values, give, steps=5):
    """Run steps, inputs handed over by `give`; losses and the state at the end."""
    losses = []
    for number in range(steps):
        feed_scalars(executor, graph, values, number)
        for name, value in arrays(graph, values).items():
            give(name, value)
        assert executor.run("train")
        losses.append(float(executor.fetch("train", "loss")))
        executor.finish("train")
    names = [graph.tensors[i].name for i in graph.persistent]
    return losses, {name: executor.read_state(name).tobytes() for name in names}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", GRAPHS)
def test_bound_and_copied_inputs_give_the_same_bits(
    name, policy, mode, device, tmp_path
):
    graph = GRAPHS[name]()
    values = random_values(graph)
    executor = loaded(device, graph, values, POLICIES[policy], MODES[mode])

    def copy(name, value):
        executor.feed("train", name)[...] = value

    copied = train(executor, graph, values, copy)
    executor.close()

    executor = loaded(device, graph, values, POLICIES[policy], MODES[mode])
    sources = {
        key: locked(v, tmp_path / key) for key, v in arrays(graph, values).items()
    }

    def bind(name, value):
        room = executor.feed("train", name)
        room.view(np.uint8)[...] = 0xA5  # a reader of the room would see it
        if not executor.bind("train", name, sources[name]):
            assert (mode, device.kernels.name) == ("planned", "reference")
            # A copy in place, which would write there.
            assert any(op.type in ("flatten", "reshape") for op in graph.ops)
            room[...] = value

    assert train(executor, graph, values, bind) == copied
    executor.close()


def test_the_room_of_a_bound_input_is_not_touched_by_readers(device):
    graph = chain()
    values = random_values(graph)
    executor = loaded(device, graph, values, planning.keep_all())
    room = executor.feed("train", "x")
    room[...] = np.nan
    feed_scalars(executor, graph, values, 0)
    executor.feed("train", "labels")[...] = values["labels"]
    bound = executor.bind("train", "x", placed(values["x"]))
    assert bound
    assert executor.run("train", guard=True)
    assert np.isnan(room).all()
    del room
    executor.close()


def test_a_flattened_input_is_not_copied_either(device):
    graph = starts_flat()
    values = random_values(graph)
    executor = loaded(device, graph, values)
    plan = executor.plans["train"]
    assert sum(isinstance(action, planning.Alias) for action in plan.actions) >= 4
    room = executor.feed("train", "x")
    room.view(np.uint8)[...] = 0xA5
    feed_scalars(executor, graph, values, 0)
    executor.feed("train", "labels")[...] = values["labels"]
    if executor.bind("train", "x", placed(values["x"])):
        executor.run("train")
        reads_x = [op for op in graph.ops if op.type == "dense_gradient_kernel"]
        assert reads_x  # the room lives to the backward phase, and nobody wrote it
        assert (room.view(np.uint8) == 0xA5).all()
    del room
    executor.close()


@pytest.mark.parametrize("mode", MODES)
def test_what_cannot_be_bound(mode, device):
    graph = chain()
    values = random_values(graph)
    executor = loaded(device, graph, values, modes=MODES[mode])
    x = values["x"]
    wrong = {
        "unaligned": placed(x, 4),
        "half a line": placed(x, 32),
        "columns first": np.asfortranarray(x),
        "every other": np.repeat(placed(x), 2, axis=0)[::2],
        "reversed": placed(x)[::-1],
        "dtype": placed(x).astype(np.float64),
        "integers of that size": placed(x).view(np.int32),
        "other byte order": placed(x.astype(">f4")),
        "shape": placed(x).reshape(-1),
        "fewer": placed(x)[:-1],
    }
    for what, array in wrong.items():
        assert not executor.bind("train", "x", array), what
    assert not executor.bind("train", "c0/kernel", placed(values["c0/kernel"]))
    with pytest.raises(KeyError):
        executor.bind("train", "nobody", x)
    with pytest.raises(KeyError):
        executor.bind("evaluate", "x", x)
    executor.close()


def test_rooms_of_the_arena_are_copied(device):
    graph = chain()
    values = random_values(graph)
    executor = loaded(device, graph, values)
    room = executor.feed("train", "x")
    assert not executor.bind("train", "x", room)
    del room
    executor.close()


def test_state_that_a_step_overwrites_is_copied(device):
    b = Builder("state as input")
    w = b.tensor("w", (4, 16), role="parameter")
    x = b.tensor("x", (4, 16), role="input")
    rate = b.tensor("learning_rate", (), role="input")
    (new,) = b.apply("sgd", (w, x, rate), {}, name="w/update", phase="update")
    graph = b.build([new])
    values = {"w": np.ones((4, 16), np.float32)}
    for modes in ({}, {"train": OWN_BUFFERS}):
        executor = loaded(device, graph, values, modes=modes)
        weights = executor._programs["train"].view("w", at_end=False)
        assert not executor.bind("train", "x", weights)
        del weights
        executor.close()


@pytest.mark.parametrize("mode", MODES)
def test_an_input_that_is_kept_is_copied(mode, device):
    b = Builder("kept")
    x = b.tensor("x", (4, 16), role="input")
    (flat,) = b.apply("reshape", (x,), {"shape": (16, 4)}, name="r")
    (y,) = b.apply("relu", (x,), {}, name="y")
    for keep in ([x, y], [flat, y]):
        graph = b.build(keep)
        executor = loaded(device, graph, {}, planning.share(), MODES[mode])
        value = placed(np.arange(64, dtype=np.float32).reshape(4, 16))
        if not executor.bind("train", "x", value):
            executor.feed("train", "x")[...] = value
        executor.run("train")
        for tensor in keep:
            found = executor.fetch("train", graph.tensors[tensor].name)
            np.testing.assert_array_equal(found.ravel(), value.ravel())
        del found
        executor.finish("train")
        executor.close()


class TestUndoing:
    @pytest.fixture(params=MODES)
    def executor(self, request, device):
        graph = chain()
        self.graph, self.values = graph, random_values(graph)
        made = loaded(device, graph, self.values, modes=MODES[request.param])
        if not made.bind("train", "x", placed(self.values["x"])):
            made.close()
            pytest.skip("the reference kernels read the arena")
        made.finish("train")
        yield made
        made.close()

    def bind(self, executor):
        x = placed(self.values["x"])
        assert executor.bind("train", "x", x)
        return weakref.ref(x.base)

    def test_it_is_kept_until_finish(self, executor):
        kept = self.bind(executor)
        assert kept() is not None
        feed_scalars(executor, self.graph, self.values, 0)
        executor.feed("train", "labels")[...] = self.values["labels"]
        assert executor.run("train")
        assert kept() is not None
        executor.finish("train")
        assert kept() is None

    def test_the_next_takes_its_place(self, executor):
        first = self.bind(executor)
        second = self.bind(executor)
        assert first() is None
        assert second() is not None

    def test_feed_ends_it(self, executor):
        kept = self.bind(executor)
        executor.feed("train", "x")[...] = self.values["x"]
        assert kept() is None

    def test_a_refusal_ends_it(self, executor):
        kept = self.bind(executor)
        assert not executor.bind("train", "x", placed(self.values["x"], 8))
        assert kept() is None

    def test_closing_ends_it(self, executor):
        kept = self.bind(executor)
        executor.close()
        assert kept() is None

    def test_a_report_of_a_measuring_run_ends_it(self, executor):
        kept = self.bind(executor)
        report = executor.memory_report("train", verify=True)
        assert report.measured_peak_bytes == report.predicted_peak_bytes
        assert kept() is None

    def test_a_run_that_fails_ends_it(self, executor, monkeypatch):
        program = executor._programs["train"]
        kept = self.bind(executor)

        def fail(*_):
            raise KernelError("it failed")

        monkeypatch.setattr(program, "_loop", _Instead(program._loop, fail))
        with pytest.raises(KernelError):
            executor.run("train")
        monkeypatch.undo()
        assert kept() is None

    def test_the_numbers_of_a_step_are_the_same(self, executor):
        def run(give):
            feed_scalars(executor, self.graph, self.values, 0)
            executor.feed("train", "labels")[...] = self.values["labels"]
            give()
            assert executor.run("train")
            report = executor.memory_report("train")
            executor.finish("train")
            return report.measured_peak_bytes, report.predicted_peak_bytes

        def copy():
            executor.feed("train", "x")[...] = self.values["x"]

        bound = run(lambda: self.bind(executor))
        assert bound[0] == bound[1]
        assert run(copy) == bound


class _Instead:
    """A loop whose `run` is another."""

    def __init__(self, loop, run):
        self._loop = loop
        self.run = run

    def __getattr__(self, name):
        return getattr(self._loop, name)
