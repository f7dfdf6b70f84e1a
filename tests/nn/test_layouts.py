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
from memcfg.nn.training._workspace_modes import (  # no public face tells the layout
    FEEDING,
    execution_mode,
    separate_workspaces,
    single_workspace,
    visits_of,
)
from memcfg.runtime import Executor, Schedule, graph_order
from memcfg.units import align_up
from memcfg.workspaces import ArrayType, WorkspaceMode

nn = mc.nn
LAYOUTS = {"single": single_workspace, "separate": separate_workspaces}


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
        graph.tensors[i].name: (
            lambda shape=graph.tensors[i].shape: np.zeros(shape, np.float32)
        )
        for i in graph.persistent
    }
    executor.load({"": graph}, planning.share(), values)
    found = executor.graphs[""]
    executor.close()
    return Schedule.of(found, graph_order(found))


def sizes_of(workspaces, schedule):
    return {each.name: each.nbytes for each in workspaces.layout(schedule).buffers}


def separate_sizes(name, kind):
    schedule = schedule_of(name, kind)
    return sizes_of(separate_workspaces(schedule), schedule)


SCHEDULES = [(name, "train") for name in NETWORKS]
SCHEDULES += [(name, kind) for name in MODELS for kind in KINDS]


@pytest.mark.parametrize(("name", "kind"), SCHEDULES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_alive_is_in_an_open_workspace_of_its_own_cycle(name, kind, layout):
    schedule = schedule_of(name, kind)
    found = LAYOUTS[layout](schedule)
    opened: dict[str, int] = {}  # since which op
    lives: dict[int, tuple[str, int]] = {}

    def open_and_make(number, tensors):
        for each in found.opens.get(number, ()):
            assert each not in opened, "opened twice"
            opened[each] = number
        for tensor in tensors:
            home = found.workspace(number, found.type_of[tensor])
            lives[tensor] = home, opened[home]

    open_and_make(FEEDING, schedule.fed)
    for op in schedule.ops:
        open_and_make(op.number, op.makes)
        assert found.workspace(op.number, found.scratch_of[op.number])
        for tensor in schedule.graph.ops[op.op].inputs:
            if tensor in lives:
                home, since = lives[tensor]
                assert opened.get(home) == since, "it was closed meanwhile"
        for tensor in op.ends:
            del lives[tensor]
        for each in found.closes.get(op.number, ()):
            del opened[each]
            assert each not in [home for home, _ in lives.values()], "closed too early"
    kept = {t for t in schedule.graph.keep if t in lives}
    assert set(lives) == kept
    assert {home for home, _ in lives.values()} <= set(opened)


@pytest.mark.parametrize(("name", "kind"), SCHEDULES)
def test_separate_takes_no_more_than_single_and_single_takes_the_sum(name, kind):
    schedule = schedule_of(name, kind)
    single = sizes_of(single_workspace(schedule), schedule)
    separate = sizes_of(separate_workspaces(schedule), schedule)
    made = [
        *schedule.fed,
        *(tensor for each in schedule.ops for tensor in each.makes),
    ]
    everything = sum(schedule.rounded(tensor) for tensor in made)
    everything += sum(schedule.scratch(each) for each in schedule.ops)
    assert single == {"LOOP_EXTERNAL": everything}
    assert sum(separate.values()) <= everything
    assert all(separate.values())


@pytest.mark.parametrize(("name", "kind"), SCHEDULES)
def test_workspaces_are_closed_as_soon_as_they_may_be(name, kind):
    """Nothing but the iteration's own is open without something that is needed."""
    schedule = schedule_of(name, kind)
    workspaces = separate_workspaces(schedule)
    for number, names in workspaces.closes.items():
        for each in names:
            if each.startswith("WS_LAYER_ACT"):
                ended = schedule.ops[number].ends
                assert each in {
                    home_of(schedule, workspaces, tensor) for tensor in ended
                }
    whole = set(workspaces.opens[FEEDING])
    assert {"WS_ALL_LAYERS_ACT", "WS_OUTPUT_MEM"} >= {
        each for each in whole if not each.startswith("WS_LAYER_ACT")
    }


def home_of(schedule, workspaces, tensor):
    maker = schedule.graph.producer[tensor]
    at = FEEDING
    if maker is not None:
        at = next(each.number for each in schedule.ops if each.op == maker)
    return workspaces.workspace(at, workspaces.type_of[tensor])


def test_in_a_chain_two_workspaces_take_turns():
    """As in DL4J: layer i reads what layer i - 1 left in the other one."""
    for kind in KINDS:
        sizes = separate_sizes("plain", kind)
        turns = [name for name in sizes if name.startswith("WS_LAYER_ACT_")]
        assert sorted(turns) == ["WS_LAYER_ACT_1", "WS_LAYER_ACT_2"]
    schedule = schedule_of("plain", "predict")
    workspaces = separate_workspaces(schedule)
    outputs = [
        home_of(schedule, workspaces, tensor)
        for tensor, kind in sorted(workspaces.type_of.items())
        if kind in (ArrayType.INPUT, ArrayType.ACTIVATIONS)
    ]
    assert outputs[:4] == ["WS_LAYER_ACT_1", "WS_LAYER_ACT_2"] * 2
    assert outputs[-1] == "WS_OUTPUT_MEM"


def test_a_result_that_skips_layers_has_a_workspace_of_its_own():
    sizes = separate_sizes("skipping", "predict")
    assert "WS_LAYER_ACT_3" in sizes


def test_what_the_backward_pass_reads_is_kept_for_the_iteration():
    schedule = schedule_of("plain")
    workspaces = separate_workspaces(schedule)
    graph = schedule.graph
    for tensor, kind in workspaces.type_of.items():
        readers = {graph.ops[i].phase for i in graph.consumers[tensor]}
        forward = graph.producer[tensor] is None or (
            graph.ops[graph.producer[tensor]].phase == "forward"
        )
        if forward and readers & {"backward", "update"}:
            assert home_of(schedule, workspaces, tensor) == "WS_ALL_LAYERS_ACT"
        if kind is ArrayType.ACTIVATION_GRAD:
            assert home_of(schedule, workspaces, tensor).startswith("WS_LAYER_ACT_")
    assert ArrayType.FF_CACHE in workspaces.type_of.values()  # mean and variance


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
    sizes = sizes_of(LAYOUTS[mode](schedule), schedule)
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
    workspaces = LAYOUTS[mode](schedule)
    layout = workspaces.layout(schedule)
    alive: dict[object, tuple[int, int, int]] = {}  # buffer, begin, end
    ends = [0] * len(layout.buffers)

    def place(what, at, home, nbytes):
        buffer, begin = at
        assert layout.buffers[buffer].name == home
        assert begin % 64 == 0
        for other, start, end in alive.values():
            assert other != buffer or begin + nbytes <= start or end <= begin
        alive[what] = (buffer, begin, begin + nbytes)
        ends[buffer] = max(ends[buffer], begin + nbytes)

    def place_tensor(tensor, number):
        home = workspaces.workspace(number, workspaces.type_of[tensor])
        place(tensor, layout.tensors[tensor], home, schedule.rounded(tensor))

    for tensor in schedule.fed:
        place_tensor(tensor, FEEDING)
    for each in schedule.ops:
        for tensor in each.makes:
            place_tensor(tensor, each.number)
        if schedule.scratch(each):
            kind = workspaces.scratch_of[each.number]
            home = workspaces.workspace(each.number, kind)
            nbytes = schedule.scratch(each)
            place("scratch", layout.scratch[each.op], home, nbytes)
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
