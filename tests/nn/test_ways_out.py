"""What a refusal says that would do instead does, and with a little less nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from internals import (
    note_planning,
    note_ways_out,
    search_no_ways_out,
    set_seconds_of_ways_out,
)

import memcfg as mc
from memcfg.errors import InfeasiblePlanError

nn = mc.nn
BATCH = 24
Configuration = mc.config.LogicalDeviceConfiguration


@pytest.fixture(autouse=True)
def _patient():
    """Search everything, however slow the machine is."""
    mc.config.set_alternatives_seconds(1000.0)


def dense():
    return [nn.Dense(24, "tanh"), nn.Dense(24, "tanh"), nn.Dense(24, "tanh")]


def normalized():
    return [nn.Dense(16), nn.BatchNormalization(), nn.ReLU(), nn.Dense(16, "tanh")]


def of_layers():
    return [nn.Dense(16), nn.LayerNormalization(), nn.ReLU(), nn.Dense(16, "tanh")]


def network(layers, policy="auto", steps=None):
    nn.set_random_seed(0)
    model = nn.Sequential([nn.Input((8,)), *layers(), nn.Dense(3)], name="net")
    optimizer = nn.SGD(0.1, gradient_accumulation_steps=steps)
    model.compile(optimizer, "mse", memory=policy, on_oom="raise")
    return model


def limit(nbytes):
    mc.config.set_memory_limit("CPU:0", nbytes)


def refusal(model, batch=BATCH):
    with pytest.raises(InfeasiblePlanError) as caught:
        model.plan(batch)
    return caught.value


def fits(model, batch=BATCH):
    try:
        model.plan(batch)
    except InfeasiblePlanError:
        return False
    return True


def spilling(given):
    """Spill to the host, on a device that was used and holds nothing."""
    (cpu,) = mc.config.list_physical_devices("CPU")
    mc.config.set_logical_device_configuration(
        cpu, [Configuration(spill_to="host")] if given else None
    )


@pytest.mark.parametrize(
    ("layers", "policy", "part"),
    [(dense, "auto", 0.45), (normalized, "share", 0.45), (dense, "keep_all", 0.3)],
)
def test_each_figure_of_a_refusal_is_true(layers, policy, part):
    limit(None)
    model = network(layers, policy)
    most = int(model.plan(BATCH).peak_bytes * part)
    limit(most)
    error = refusal(model)
    assert not error.unsearched
    largest = error.largest_batch
    assert largest is not None
    assert largest < BATCH
    assert largest == 0 or fits(model, largest)
    assert not fits(model, largest + 1)
    if error.accumulation is not None:
        steps, batch = error.accumulation
        assert steps * batch == BATCH
        assert fits(network(layers, policy, steps), batch)
        larger = [b for b in range(batch + 1, BATCH) if BATCH % b == 0]
        for each in larger[:1]:
            assert not fits(network(layers, policy, BATCH // each), each)
    assert error.limits_with or policy == "auto"
    for setting, enough in error.limits_with.items():
        assert enough < error.smallest_limit_bytes
        other = network(layers, "auto" if "auto" in setting else policy)
        spilling("spill_to" in setting)
        limit(enough)
        assert fits(other)
        limit(enough - 1)
        assert not fits(other)
        spilling(given=False)
    limit(error.smallest_limit_bytes)
    assert fits(model)


def test_the_words_name_settings_as_they_are_written():
    limit(None)
    model = network(of_layers, "share")
    limit(model.plan(BATCH).peak_bytes * 4 // 5)
    text = str(refusal(model))
    assert 'With memory="auto": at least ' in text
    assert 'With memory="auto" and spill_to="host": at least ' in text
    assert "The largest batch that fits: batch_size=" in text
    assert "fits with gradient_accumulation_steps=" in text
    assert max(map(len, text.splitlines())) < 90
    limit(None)
    model = network(normalized, "share")  # statistics would be of smaller batches
    limit(model.plan(BATCH).peak_bytes * 4 // 5)
    assert refusal(model).accumulation is None


def test_fit_says_what_would_do_and_that_does():
    limit(None)
    model = network(dense, "share")
    x, y = np.ones((BATCH, 8), "f4"), np.ones((BATCH, 3), "f4")
    limit(model.plan(BATCH).peak_bytes - 1)
    with pytest.raises(InfeasiblePlanError) as caught:
        model.fit(x, y, batch_size=BATCH, verbose=0)
    found = caught.value.largest_batch
    assert found
    model.fit(x, y, batch_size=found, verbose=0)


def test_what_was_not_searched_is_said():
    limit(None)
    model = network(dense)
    limit(model.plan(BATCH).peak_bytes // 3)
    mc.config.set_alternatives_seconds(0.0)
    error = refusal(model)
    assert error.unsearched == ('spill_to="host"', "smaller batches")
    assert error.largest_batch is None
    assert 'Not searched to the end: spill_to="host", ' in str(error)


def test_a_search_has_a_limit_however_long_the_refused_plan_took(monkeypatch):
    limit(None)
    model = network(dense)
    limit(model.plan(BATCH).peak_bytes // 3)
    mc.config.set_alternatives_seconds(None)
    set_seconds_of_ways_out(monkeypatch, most=0.0)
    assert refusal(model).unsearched == ('spill_to="host"', "smaller batches")


def test_a_setting_whose_plan_takes_long_ends_in_time(monkeypatch):
    limit(None)
    model = network(lambda: [*dense(), *dense(), *dense()], "share")
    limit(model.plan(BATCH).peak_bytes * 9 // 10)
    calls = note_planning(monkeypatch)
    set_seconds_of_ways_out(monkeypatch, part=0.0)
    error = refusal(model)
    assert 'memory="auto"' in error.unsearched
    assert error.largest_batch
    assert not error.limits_with
    assert calls


def test_state_that_does_not_fit_is_told_and_nothing_is_searched(monkeypatch):
    limit(None)
    model = network(dense)
    state = sum(each.nbytes for each in model.get_weights())
    limit(state - 1)
    search_no_ways_out(monkeypatch)
    error = refusal(model)
    assert (error.largest_batch, error.unsearched) == (0, ())
    assert f"weights and optimizer state alone take {state} B (" in str(error)


def test_a_refusal_of_twenty_layers_names_a_setting():
    """In the time that it takes by itself, which `_patient` changed."""
    mc.config.set_alternatives_seconds(None)
    limit(None)
    model = network(lambda: [nn.Dense(24, "tanh") for _ in range(20)], "share")
    limit(model.plan(BATCH).peak_bytes * 2 // 3)
    assert 'memory="auto"' in refusal(model).limits_with


def test_a_refused_step_is_searched_for_once(monkeypatch):
    limit(None)
    model = network(dense, "share")
    limit(model.plan(BATCH).peak_bytes // 3)
    searches = note_ways_out(monkeypatch)
    error = refusal(model)
    assert searches == [error]


class Eights(nn.Layer):
    """Takes multiples of 8 samples; one sample is its shape's."""

    def trace(self, scope, inputs):
        samples = scope.builder.shape(inputs[0])[0]
        if samples > 1 and samples % 8:
            raise ValueError("not a multiple of 8 samples")
        return scope.apply("tanh", inputs)[0]


def test_a_batch_that_a_layer_rejects_does_not_replace_the_refusal():
    def layers():
        return [Eights(), *dense()]

    limit(None)
    model = network(layers)
    limit(model.plan(BATCH).peak_bytes // 2)
    error = refusal(model)
    what = "larger batches" if error.largest_batch else "smaller batches"
    assert what in error.unsearched
    assert error.largest_batch != 0  # it is not known that no batch fits
    assert error.largest_batch is None or fits(model, error.largest_batch)


class Rejecting:
    """A policy that raises an error for all graphs but the first."""

    name = "rejecting"

    def __init__(self, error):
        self.error, self.graph = error, None

    def __call__(self, graph, limit_bytes=None):
        self.graph = self.graph or graph.name
        if graph.name != self.graph:
            raise self.error
        return mc.plan.share()(graph, limit_bytes=limit_bytes)


@pytest.mark.parametrize("kind", [KeyError, MemoryError])
def test_an_error_of_a_policy_does_not_replace_the_refusal(kind):
    limit(None)
    model = network(lambda: [nn.Dense(24, "tanh")], Rejecting(kind("unknown")))
    limit(model.plan(BATCH).peak_bytes // 2)
    error = refusal(model)
    assert error.unsearched == ("smaller batches",)
    assert error.largest_batch is error.accumulation is None


def test_a_graph_too_large_for_the_policy_is_no_way_out():
    """The step has few enough ops for exact(); with accumulation it has too many."""

    def layers():
        return [nn.Dense(8, "tanh") for _ in range(6)]

    limit(None)
    hasty = replace(mc.plan.exact(), effort=200)
    model = network(layers, hasty)
    with pytest.raises(mc.errors.GraphError, match="up to 64 ops"):
        network(layers, hasty, 2).plan(BATCH // 2)
    limit("1KiB")
    limit(refusal(model).smallest_limit_bytes - 1)
    error = refusal(model)
    assert error.largest_batch >= BATCH // 2
    assert error.accumulation is None
    assert not error.unsearched


def test_a_refusal_names_its_program():
    limit("1KiB")
    model = network(dense)
    with pytest.raises(InfeasiblePlanError) as caught:
        model.fit(np.ones((4, 8), "f4"), np.ones((4, 3), "f4"), batch_size=4, verbose=0)
    assert caught.value.program in str(caught.value)
    assert "batch 4" in caught.value.program


def test_nothing_is_measured_for_a_refusal():
    """With times="measured" each batch size would be."""
    limit("1KiB")
    model = nn.Sequential([nn.Input((8,)), nn.Dense(16), nn.Dense(3)])
    model.compile("sgd", "mse", times="measured", on_oom="raise")
    assert refusal(model).unsearched == ('spill_to="host"', "smaller batches")


def test_a_batch_of_a_fixed_size_has_no_smaller_one():
    nn.set_random_seed(0)
    x = nn.Input((8,), batch_size=BATCH)
    model = nn.Model(x, nn.Dense(3)(x))
    model.compile("sgd", "mse", on_oom="raise")
    limit("512B")
    error = refusal(model)
    assert error.largest_batch is error.accumulation is None
    assert not error.unsearched


def test_a_recurrent_layer_of_one_op_says_how_to_unroll_it():
    x = nn.Input((8, 4))
    model = nn.Model(x, nn.Dense(3)(nn.LSTM(8)(x)))
    model.compile("sgd", "mse", on_oom="raise")
    limit("4KiB")
    told = "With unroll=True a policy can recompute single steps of LSTM"
    assert told in str(refusal(model, 4))
    model.compile("sgd", "mse", memory=mc.plan.bptt_mixed(), on_oom="raise")
    with pytest.raises(mc.errors.GraphError, match="pass unroll=True"):
        model.plan(4)


@pytest.mark.parametrize("policy", ["share", "keep_all", "auto", mc.plan.vdnn_all()])
def test_one_sample_is_not_told_to_be_fewer(policy):
    limit(None)
    model = network(dense, policy)
    state = sum(each.nbytes for each in model.get_weights())
    needed = model.plan(1).peak_bytes
    if policy == "auto":
        needed = mc.plan.lower_bound(model.graph(1)) // 64 * 64
    for nbytes in (needed - 64, state - 1):
        limit(nbytes)
        one, several = refusal(model, 1), refusal(model)
        assert "batch" not in one.hint
        assert one.hint.startswith("Raise ")
        assert one.largest_batch is None
        assert "No smaller batch" not in str(one)
        assert several.largest_batch == 0
