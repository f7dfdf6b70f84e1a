"""Timelines of programs: measured peaks and times beside the plan's."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from interpreter import random_values
from networks import chain, noisy
from swapping import Swapping
from timelines import alive, overlaps

import memcfg as mc
from memcfg.plan import Wait, share, sqrt_checkpoint
from memcfg.runtime import OWN_BUFFERS, Executor


def load(graph, policy, modes=None):
    executor = Executor(mc.config.logical_device(), name="model")
    executor.load({"train": graph}, policy, random_values(graph), modes)
    return executor


def state(executor):
    return {name: executor.read_state(name).tobytes() for name in executor.state}


@pytest.mark.parametrize(
    "policy",
    [share(), sqrt_checkpoint(), Swapping(("host", "file"), early=1, late=3)],
    ids=["share", "recomputing", "swapping"],
)
def test_the_highest_box_ends_at_the_measured_peak(policy):
    executor = load(noisy(2, 1, 4, 2), policy)
    before = state(executor)
    timeline = executor.memory_timeline("train", verify=True)
    report = executor.memory_report("train", verify=True)
    assert state(executor) == before
    ends = [box.offset + box.nbytes for box in timeline.boxes]
    peaks = {max(ends), timeline.peak_bytes, timeline.measured_peak_bytes}
    assert peaks == {report.measured_peak_bytes}
    computed = [
        (event.name, event.live_bytes)
        for event in timeline.events
        if event.kind in ("forward", "backward", "update")
    ]
    assert computed == [(entry.op, entry.live_bytes) for entry in report.timeline]
    assert overlaps(timeline.boxes) == []
    assert len(timeline.measured) == len(timeline.planned)
    assert all(begin <= end for begin, end in pairwise(timeline.measured))
    assert timeline.measured[-1] > 0
    executor.close()


def test_measured_copies_end_before_their_waits_do():
    executor = load(chain(3, 1, 4, 2), Swapping(("host",), early=1, late=2))
    plan = executor.plans["train"]
    timeline = executor.memory_timeline("train", verify=True)
    assert timeline.copies
    waits = [
        (timeline.measured[number + 1], event.name)
        for number, event in enumerate(timeline.events)
        if event.kind == "wait"
    ]
    assert len(waits) == sum(isinstance(action, Wait) for action in plan.actions)
    for copy in timeline.copies:
        begin, end = copy.measured
        assert 0 <= begin <= end
        own = [time for time, name in waits if name == copy.name and time >= end - 1e-9]
        assert own, "no wait ends after the copy"
    executor.close()


def test_a_step_in_buffers_of_its_own_has_the_bytes_of_the_pool():
    executor = load(noisy(2, 1, 4, 2), share(), {"train": OWN_BUFFERS})
    timeline = executor.memory_timeline("train", verify=True)
    report = executor.memory_report("train", verify=True)
    assert not timeline.has_places
    assert overlaps(timeline.boxes) == []
    assert max(timeline.measured_bytes) == report.measured_peak_bytes
    assert timeline.measured_peak_bytes == report.measured_peak_bytes
    for number, event in enumerate(timeline.events):
        assert event.live_bytes == sum(box.nbytes for box in alive(timeline, number))
        assert timeline.measured_bytes[number] >= event.live_bytes
    executor.close()


def test_without_verify_nothing_runs():
    executor = load(chain(), share())
    timeline = executor.memory_timeline("train")
    assert timeline.measured == ()
    assert timeline.measured_peak_bytes is None
    with pytest.raises(KeyError):
        executor.memory_timeline("evaluate")
    executor.close()


def test_a_model_shows_where_its_layers_are_made(tmp_path):
    nn = mc.nn
    model = nn.Sequential(
        [
            nn.Input((8,)),
            nn.Dense(16, activation="relu", name="first"),
            nn.Dense(4, name="second"),
        ]
    )
    model.compile("sgd", "mse")
    with pytest.raises(RuntimeError, match="no memory plan yet"):
        model.memory_timeline()
    model.fit(np.zeros((8, 8), "f4"), np.zeros((8, 4), "f4"), batch_size=4, verbose=0)
    before = [weight.copy() for weight in model.get_weights()]
    timeline = model.memory_timeline(verify=True)
    assert all(map(np.array_equal, before, model.get_weights()))
    lines = {box.layer: box.line for box in timeline.boxes if box.layer}
    with open(__file__, encoding="utf-8") as source:
        text = source.read().splitlines()
    for layer in ("first", "second"):
        path, _, number = lines[layer].rpartition(":")
        assert path.endswith("test_measured_timelines.py")
        assert f'name="{layer}"' in text[int(number) - 1]
    timeline.save(tmp_path / "step.html")
    assert timeline.facts["device"] == "/device:CPU:0"
    model.close()


def test_a_layer_is_made_where_the_working_folder_is_gone(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    mc.nn.Dense(1)


def test_a_function_and_steps_of_ones_own_have_timelines():
    @mc.function
    def norm(x):
        y = x * x
        return y.sum() if hasattr(y, "sum") else mc.nn.ops.sum(y)

    timeline = norm.memory_timeline(np.ones((4, 4), "f4"), verify=True)
    assert timeline.measured_peak_bytes == timeline.peak_bytes
    assert any(":" in event.line for event in timeline.events)
