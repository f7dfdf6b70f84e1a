"""What lives in which workspace: of every network, at every op of a step."""

from __future__ import annotations

import numpy as np
import pytest
from interpreter import random_values
from networks import NETWORKS, chain
from traces import traced

import memcfg as mc
from memcfg import plan as planning
from memcfg.errors import ResourceExhaustedError
from memcfg.nn.training.modes._array_types import (  # no public face tells the layout
    array_types,
    visits_of,
)
from memcfg.nn.training.modes._workspace_modes import SEPARATE, SINGLE, execution_mode
from memcfg.runtime import Executor, Schedule, graph_order
from memcfg.units import align_up
from memcfg.workspaces import ArrayType, WorkspaceMode

nn = mc.nn
LAYOUTS = {"single": SINGLE, "separate": SEPARATE}


def plain():
    layers = [nn.Input((8, 8, 3))]
    for _ in range(4):
        layers += [nn.Conv2D(4, 3, padding="same"), nn.BatchNormalization(), nn.ReLU()]
    return nn.Sequential([*layers, nn.Flatten(), nn.Dense(5)])


def skipping():
    x = nn.Input((8, 8, 3))
    h = nn.Conv2D(4, 3, padding="same")(x)
    for _ in range(2):
        inner = nn.Conv2D(4, 3, padding="same", activation="relu")(h)
        inner = nn.BatchNormalization()(nn.Conv2D(4, 3, padding="same")(inner))
        h = nn.Add()([h, inner])
    return nn.Model(x, nn.Dense(5)(nn.GlobalAvgPool2D()(h)))


def shared():
    x = nn.Input((6,))
    twice = nn.Dense(6, activation="relu")
    h = nn.Dropout(0.2)(twice(nn.Dropout(0.1)(twice(x))))
    return nn.Model(x, nn.Dense(4)(h))


MODELS = {
    "plain": (plain, (8, 8, 3)),
    "skipping": (skipping, (8, 8, 3)),
    "shared": (shared, (6,)),
}
KINDS = ("train", "evaluate", "predict")


def schedule_of(name, kind="train", batch=6):
    """A model's schedule, with the scratch of this machine's kernels."""
    if name in NETWORKS:
        graph = NETWORKS[name](batch=batch)
    else:
        make, shape = MODELS[name]
        graph = traced(make(), kind, (batch, *shape))
    executor = Executor(mc.config.logical_device(), name="scratch")
    values = {
        graph.tensors[i].name: np.zeros(graph.tensors[i].shape, np.float32)
        for i in graph.persistent
    }
    executor.load({"": graph}, planning.share(), values)
    found = executor.graphs[""]
    executor.close()
    return Schedule.of(found, graph_order(found))


def sizes_of(layout, schedule):
    return {each.name: each.nbytes for each in layout(schedule).buffers}


SCHEDULES = [(name, "train") for name in NETWORKS]
SCHEDULES += [(name, kind) for name in MODELS for kind in KINDS]


@pytest.mark.parametrize(("name", "kind"), SCHEDULES)
def test_separate_takes_no_more_than_single_and_single_takes_the_sum(name, kind):
    schedule = schedule_of(name, kind)
    separate = sizes_of(SEPARATE, schedule)
    made = [
        *schedule.fed,
        *(tensor for each in schedule.ops for tensor in each.makes),
    ]
    everything = sum(schedule.rounded(tensor) for tensor in made)
    everything += sum(schedule.scratch(each) for each in schedule.ops)
    assert sizes_of(SINGLE, schedule) == {"LOOP_EXTERNAL": everything}
    assert sum(separate.values()) <= everything
    assert all(separate.values())
    usual = {"WS_ALL_LAYERS_ACT", "WS_LAYER_ACT", "WS_LAYER_WORKING_MEM"}
    assert separate
    assert separate.keys() == usual if kind == "train" else separate.keys() <= usual


def test_what_another_layer_reads_is_no_working_memory():
    """Of each tensor the type says who reads it, forward and backward."""
    schedule = schedule_of("plain")
    graph, types = schedule.graph, array_types(schedule)
    visit_of = {
        number: visit
        for visit in visits_of(schedule)
        for number in range(visit.first, visit.last + 1)
    }
    number_of = {each.op: each.number for each in schedule.ops}
    for each in schedule.ops:
        op, visit = graph.ops[each.op], visit_of[each.number]
        for tensor in each.makes:
            outside = [
                graph.ops[i].phase
                for i in graph.consumers[tensor]
                if visit_of[number_of[i]] != visit
            ]
            if tensor in graph.keep or "forward" in outside:
                assert types.tensors[tensor] is ArrayType.ACTIVATIONS
            elif op.phase == "forward" and outside:
                assert types.tensors[tensor] is ArrayType.FF_CACHE
            elif outside:
                assert types.tensors[tensor] is ArrayType.ACTIVATION_GRAD
            else:
                assert types.tensors[tensor].value.endswith("working_mem")
    assert {types.tensors[tensor] for tensor in schedule.fed} == {ArrayType.INPUT}
    # mean and variance; all kinds but those of recurrent loops
    assert {*types.tensors.values(), *types.scratch.values()} >= {
        ArrayType.FF_CACHE,
        ArrayType.ACTIVATIONS,
        ArrayType.ACTIVATION_GRAD,
    }


def test_visits_are_layers_forward_and_backward():
    schedule = schedule_of("plain")
    visits = visits_of(schedule)
    assert [visit.first for visit in visits[1:]] == [v.last + 1 for v in visits[:-1]]
    forward = [visit.layer for visit in visits if visit.phase == "forward"]
    backward = [visit.layer for visit in visits if visit.phase == "backward"]
    assert [name for name in forward if name != "loss"] == [
        name for name in reversed(backward) if name != "loss"
    ]
    # a ReLU is one op with the normalisation before it
    assert len(set(forward)) == len(forward) == 4 * 2 + 2 + 1


def test_a_layer_that_is_called_twice_is_visited_twice():
    layers = [visit.layer for visit in visits_of(schedule_of("shared"))]
    twice = [name for name in set(layers) if layers.count(name) == 4]
    assert len(twice) == 1
    assert twice[0].startswith("dense")


def loaded(device, graph, values, mode):
    executor = Executor(device, name="model")
    found = execution_mode(WorkspaceMode(mode))
    executor.load({"train": graph}, planning.share(), values, {"train": found})
    return executor


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("mode", ["single", "separate"])
def test_sizes_are_what_the_pool_holds_to_the_byte(name, mode):
    device = mc.config.logical_device()
    graph = NETWORKS[name]()
    values = random_values(graph)
    executor = loaded(device, graph, values, mode)
    feed(executor, graph, values)
    assert executor.run("train")
    executor.finish("train")
    schedule = Schedule.of(executor.graphs["train"], graph_order(graph))
    sizes = sizes_of(LAYOUTS[mode], schedule)
    state = sum(align_up(graph.tensors[i].nbytes) for i in graph.persistent)
    expected = {f"model model: {name}": nbytes for name, nbytes in sizes.items()}
    assert device.pool.owners() == {"model model": state, **expected}
    executor.close()
    assert device.pool.stats().current_bytes == 0
    assert mc.list_workspaces() == []


def feed(executor, graph, values):
    for i, tensor in enumerate(graph.tensors):
        if tensor.role == "input" and graph.producer[i] is None:
            executor.feed("train", tensor.name)[...] = values[tensor.name]


@pytest.mark.parametrize(("name", "kind"), SCHEDULES)
@pytest.mark.parametrize("mode", ["single", "separate"])
def test_everything_lies_in_the_workspace_of_its_type_and_nothing_overlaps(
    name, kind, mode
):
    schedule = schedule_of(name, kind)
    layout, types = LAYOUTS[mode](schedule), array_types(schedule)
    homes = dict(LAYOUTS[mode].homes)
    alive: dict[object, tuple[int, int, int]] = {}  # buffer, begin, end
    ends = [0] * len(layout.buffers)

    def place(what, at, kind, nbytes):
        buffer, begin = at
        assert layout.buffers[buffer].name == homes[kind].name
        assert begin % 64 == 0
        for other, start, end in alive.values():
            assert other != buffer or begin + nbytes <= start or end <= begin
        alive[what] = (buffer, begin, begin + nbytes)
        ends[buffer] = max(ends[buffer], begin + nbytes)

    def place_tensor(tensor):
        kind, nbytes = types.tensors[tensor], schedule.rounded(tensor)
        place(tensor, layout.tensors[tensor], kind, nbytes)

    for tensor in schedule.fed:
        place_tensor(tensor)
    for each in schedule.ops:
        for tensor in each.makes:
            place_tensor(tensor)
        if nbytes := schedule.scratch(each):
            kind = types.scratch[each.number]
            place("scratch", layout.scratch[each.op], kind, nbytes)
            del alive["scratch"]
        for tensor in each.ends:
            del alive[tensor]
    assert ends == [each.nbytes for each in layout.buffers]


@pytest.mark.parametrize("mode", ["single", "separate"])
def test_a_view_that_is_kept_keeps_its_page(mode):
    """The next step gets another one; nothing is overwritten."""
    device = mc.config.logical_device()
    graph = chain()
    values = random_values(graph)
    executor = loaded(device, graph, values, mode)
    feed(executor, graph, values)
    assert executor.run("train")
    loss = executor.fetch("train", "loss")
    value = float(loss)
    executor.finish("train")
    held = device.pool.stats().current_bytes
    for _ in range(3):
        feed(executor, graph, values)
        assert executor.run("train")
        executor.finish("train")
        assert float(loss) == value
        assert device.pool.stats().current_bytes > held
    executor.close()
    assert device.pool.stats().current_bytes > 0
    del loss
    assert device.pool.stats().current_bytes == 0


@pytest.mark.parametrize("mode", ["single", "separate"])
def test_a_page_that_cannot_be_had_is_refused_before_the_step(mode):
    device = mc.config.logical_device()
    graph = chain()
    values = random_values(graph)
    executor = loaded(device, graph, values, mode)
    before = executor.read_state("c0/kernel")
    held = device.pool.stats().current_bytes
    mc.config.set_memory_limit(device.name, held + 4096)
    with pytest.raises(ResourceExhaustedError, match="as before the step") as caught:
        executor.feed("train", "x")
    assert "'x'" in str(caught.value)
    assert device.pool.stats().current_bytes == held
    mc.config.set_memory_limit(device.name, None)
    feed(executor, graph, values)
    assert executor.run("train")
    assert np.any(executor.read_state("c0/kernel") != before)
    executor.close()


def test_all_pages_are_there_before_a_step_begins():
    """Also those that are used in the middle of it, when updates have been made."""
    device = mc.config.logical_device()
    graph = chain()
    values = random_values(graph)
    executor = loaded(device, graph, values, "separate")
    program = executor.prepare("train")
    feed(executor, graph, values)
    assert executor.run("train")
    buffers = map(program._loop.buffer, program._spaces)
    kept = max(buffers, key=lambda buffer: memoryview(buffer).nbytes)  # as a view does
    del buffers
    executor.finish("train")
    before = executor.read_state("head/kernel")
    left = memoryview(kept).nbytes // 2  # less than another one takes
    mc.config.set_memory_limit(device.name, device.pool.stats().current_bytes + left)
    with pytest.raises(ResourceExhaustedError, match="as before the step"):
        executor.feed("train", "x")
    assert np.array_equal(executor.read_state("head/kernel"), before)
    del kept
    feed(executor, graph, values)
    assert executor.run("train")
    executor.close()
    del program
    assert device.pool.stats().current_bytes == 0
