"""What lives in which workspace: of every network, at every moment of a step."""

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
    separate_layout,
    single_layout,
    visits_of,
)
from memcfg.runtime import Executor, Walk, graph_order
from memcfg.units import align_up
from memcfg.workspaces import ArrayType, WorkspaceMode

nn = mc.nn
LAYOUTS = {"single": single_layout, "separate": separate_layout}


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


def walk_of(name, kind="train", batch=6):
    """A model's walk, with the scratch of this machine's kernels."""
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
    return Walk.of(found, graph_order(found))


WALKS = [(name, "train") for name in NETWORKS]
WALKS += [(name, kind) for name in MODELS for kind in KINDS]


@pytest.mark.parametrize(("name", "kind"), WALKS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_alive_is_in_an_open_workspace_of_its_own_cycle(name, kind, layout):
    walk = walk_of(name, kind)
    found = LAYOUTS[layout](walk)
    opened: dict[str, int] = {}  # since which moment
    lives: dict[int, tuple[str, int]] = {}

    def open_and_make(moment, tensors):
        for each in found.opens.get(moment, ()):
            assert each not in opened, "opened twice"
            opened[each] = moment
        for tensor in tensors:
            home = found.home(moment, found.type_of[tensor])
            lives[tensor] = home, opened[home]

    open_and_make(FEEDING, walk.fed)
    for moment in walk.moments:
        open_and_make(moment.number, moment.makes)
        assert found.home(moment.number, found.scratch_of[moment.number])
        for tensor in walk.graph.ops[moment.op].inputs:
            if tensor in lives:
                home, since = lives[tensor]
                assert opened.get(home) == since, "it was closed meanwhile"
        for tensor in moment.ends:
            del lives[tensor]
        for each in found.closes.get(moment.number, ()):
            del opened[each]
            assert each not in [home for home, _ in lives.values()], "closed too early"
    kept = {t for t in walk.graph.keep if t in lives}
    assert set(lives) == kept
    assert {home for home, _ in lives.values()} <= set(opened)


@pytest.mark.parametrize(("name", "kind"), WALKS)
def test_separate_takes_no_more_than_single_and_single_takes_the_sum(name, kind):
    walk = walk_of(name, kind)
    single = single_layout(walk).sizes(walk)
    separate = separate_layout(walk).sizes(walk)
    made = [*walk.fed, *(tensor for moment in walk.moments for tensor in moment.makes)]
    everything = sum(walk.rounded(tensor) for tensor in made)
    everything += sum(walk.scratch(moment) for moment in walk.moments)
    assert single == {"LOOP_EXTERNAL": everything}
    assert sum(separate.values()) < everything
    assert all(separate.values())


@pytest.mark.parametrize(("name", "kind"), WALKS)
def test_workspaces_are_closed_as_soon_as_they_may_be(name, kind):
    """Nothing but the iteration's own is open without something that is needed."""
    walk = walk_of(name, kind)
    layout = separate_layout(walk)
    for moment, names in layout.closes.items():
        for each in names:
            if each.startswith("WS_LAYER_ACT"):
                ended = walk.moments[moment].ends
                assert each in {home_of(walk, layout, tensor) for tensor in ended}
    whole = set(layout.opens[FEEDING])
    assert {"WS_ALL_LAYERS_ACT", "WS_OUTPUT_MEM"} >= {
        each for each in whole if not each.startswith("WS_LAYER_ACT")
    }


def home_of(walk, layout, tensor):
    maker = walk.graph.producer[tensor]
    at = FEEDING
    if maker is not None:
        at = next(moment.number for moment in walk.moments if moment.op == maker)
    return layout.home(at, layout.type_of[tensor])


def test_in_a_chain_two_workspaces_take_turns():
    """As in DL4J: layer i reads what layer i - 1 left in the other one."""
    for kind in KINDS:
        sizes = separate_layout(walk_of("plain", kind)).sizes(walk_of("plain", kind))
        turns = [name for name in sizes if name.startswith("WS_LAYER_ACT_")]
        assert sorted(turns) == ["WS_LAYER_ACT_1", "WS_LAYER_ACT_2"]
    walk = walk_of("plain", "predict")
    layout = separate_layout(walk)
    outputs = [
        home_of(walk, layout, tensor)
        for tensor, kind in sorted(layout.type_of.items())
        if kind in (ArrayType.INPUT, ArrayType.ACTIVATIONS)
    ]
    assert outputs[:4] == ["WS_LAYER_ACT_1", "WS_LAYER_ACT_2"] * 2
    assert outputs[-1] == "WS_OUTPUT_MEM"


def test_a_result_that_skips_layers_has_a_workspace_of_its_own():
    sizes = separate_layout(walk_of("skipping", "predict")).sizes(
        walk_of("skipping", "predict")
    )
    assert "WS_LAYER_ACT_3" in sizes


def test_what_the_backward_pass_reads_is_kept_for_the_iteration():
    walk = walk_of("plain")
    layout = separate_layout(walk)
    graph = walk.graph
    for tensor, kind in layout.type_of.items():
        readers = {graph.ops[i].phase for i in graph.consumers[tensor]}
        forward = graph.producer[tensor] is None or (
            graph.ops[graph.producer[tensor]].phase == "forward"
        )
        if forward and readers & {"backward", "update"}:
            assert home_of(walk, layout, tensor) == "WS_ALL_LAYERS_ACT"
        if kind is ArrayType.ACTIVATION_GRAD:
            assert home_of(walk, layout, tensor).startswith("WS_LAYER_ACT_")
    assert ArrayType.FF_CACHE in layout.type_of.values()  # mean and variance


def test_visits_are_layers_forward_and_backward():
    walk = walk_of("plain")
    visits = visits_of(walk)
    assert [visit.first for visit in visits[1:]] == [v.last + 1 for v in visits[:-1]]
    forward = [visit.layer for visit in visits if visit.phase == "forward"]
    backward = [visit.layer for visit in visits if visit.phase == "backward"]
    assert [name for name in forward if name != "loss"] == [
        name for name in reversed(backward) if name != "loss"
    ]
    assert len(set(forward)) == len(forward) == 4 * 3 + 2 + 1


def test_a_layer_that_is_called_twice_is_visited_twice():
    layers = [visit.layer for visit in visits_of(walk_of("shared"))]
    twice = [name for name in set(layers) if layers.count(name) == 4]
    assert len(twice) == 1
    assert twice[0].startswith("dense")


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("mode", ["single", "separate"])
def test_sizes_are_what_the_workspaces_hold_to_the_byte(name, mode):
    device = mc.config.logical_device()
    graph = NETWORKS[name]()
    values = random_values(graph)
    executor = Executor(device, name="model")
    way = execution_mode(WorkspaceMode(mode))
    executor.load({"train": graph}, planning.share(), values, {"train": way})
    feed(executor, graph, values)
    assert executor.run("train")
    executor.finish("train")
    placer = executor._programs["train"].placer
    for each, space in placer._spaces.by_name.items():
        stats = space.stats()
        assert stats.max_cycle_bytes == stats.size == placer._sizes[each]
        assert stats.spilled_count == stats.live_arrays == stats.escaped_arrays == 0
        assert not space.is_open
    state = sum(align_up(graph.tensors[i].nbytes) for i in graph.persistent)
    held = sum(placer._sizes.values())
    assert (
        device.pool.stats().current_bytes == state + held == state + placer.held_bytes
    )
    executor.close()
    assert device.pool.stats().current_bytes == 0
    assert mc.list_workspaces() == []


def feed(executor, graph, values):
    for i, tensor in enumerate(graph.tensors):
        if tensor.role == "input" and graph.producer[i] is None:
            executor.feed("train", tensor.name)[...] = values[tensor.name]


class Validating:
    """Looks at each op's operands with the manager of its layer: scope panic."""

    def __init__(self, program):
        self.program = program
        self.looked_at = 0

    def ready(self, moment, rooms, scratch):
        placer, graph = self.program.placer, self.program.graph
        op, updated = graph.ops[moment.op], planning.state_updates(graph)
        for tensor in (*op.inputs, *op.outputs):
            if tensor in rooms and tensor not in updated:
                maker = graph.producer[tensor]
                at = FEEDING
                if maker is not None:
                    at = self.number_of(maker)
                kind = placer._layout.type_of[tensor]
                array = rooms[tensor].array((graph.tensors[tensor].nbytes,), "uint8")
                placer._managers[at].validate_array_location(
                    kind, array, error_if_detached=True
                )
                self.looked_at += 1

    def number_of(self, op):
        return next(m.number for m in self.program.walk.moments if m.op == op)

    def done(self, moment):
        pass


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("mode", ["single", "separate"])
def test_every_operand_is_where_its_type_lives(name, mode):
    graph = NETWORKS[name]()
    values = random_values(graph)
    executor = Executor(mc.config.logical_device(), name="model")
    way = execution_mode(WorkspaceMode(mode))
    executor.load({"train": graph}, planning.share(), values, {"train": way})
    program = executor._programs["train"]
    for _ in range(2):
        feed(executor, graph, values)
        watch = Validating(program)
        assert program.run_watched(watch)
        executor.finish("train")
    assert watch.looked_at > len(graph.ops)
    executor.close()


@pytest.mark.parametrize("mode", ["single", "separate"])
def test_a_view_that_is_kept_keeps_its_page(mode):
    """The next step gets another one; nothing is overwritten."""
    device = mc.config.logical_device()
    graph = chain()
    values = random_values(graph)
    executor = Executor(device, name="model")
    way = execution_mode(WorkspaceMode(mode))
    executor.load({"train": graph}, planning.share(), values, {"train": way})
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
    executor = Executor(device, name="model")
    way = execution_mode(WorkspaceMode(mode))
    executor.load({"train": graph}, planning.share(), values, {"train": way})
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


class Keeping:
    """Keeps the scratch of the last op that has any, in its layer's working memory."""

    def __init__(self, program):
        walk = program.walk
        self.last = max(m.number for m in walk.moments if walk.scratch(m))
        self.kept = None

    def ready(self, moment, rooms, scratch):
        if moment.number == self.last:
            self.kept = scratch.array((scratch.nbytes,), "uint8")

    def done(self, moment):
        pass


def test_all_pages_are_there_before_a_step_begins():
    """Also those that are opened in the middle of it, when updates have been made."""
    device = mc.config.logical_device()
    if device.kernels.name == "reference":
        pytest.skip("NumPy's kernels have no scratch")
    graph = chain()
    values = random_values(graph)
    executor = Executor(device, name="model")
    way = execution_mode(WorkspaceMode.SEPARATE)
    executor.load({"train": graph}, planning.share(), values, {"train": way})
    program = executor._programs["train"]
    feed(executor, graph, values)
    watch = Keeping(program)
    assert program.run_watched(watch)
    executor.finish("train")
    before = executor.read_state("head/kernel")
    room = watch.kept.nbytes // 2  # less than another page of scratch takes
    mc.config.set_memory_limit(device.name, device.pool.stats().current_bytes + room)
    with pytest.raises(ResourceExhaustedError, match="as before the step"):
        executor.feed("train", "x")
    assert np.array_equal(executor.read_state("head/kernel"), before)
    watch.kept = None
    feed(executor, graph, values)
    assert executor.run("train")
    executor.close()
    assert device.pool.stats().current_bytes == 0
