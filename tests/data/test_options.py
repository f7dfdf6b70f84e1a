"""Settings of a pipeline: none is without effect, and none is changed from afar."""

from __future__ import annotations

import copy
import pickle

import pytest

import memcfg as mc

Dataset, Options = mc.data.Dataset, mc.data.Options


def made(**settings):
    options = Options()
    for name, value in settings.items():
        part, _, last = name.rpartition("__")
        setattr(getattr(options, part) if part else options, last, value)
    return options


SETTINGS = {
    "deterministic": False,
    "autotune__enabled": False,
    "autotune__ram_budget": 1000,
    "autotune__cpu_budget": 3,
    "threading__private_threadpool_size": 2,
}


def read(options, name):
    for part in name.split("__"):
        options = getattr(options, part)
    return options


def test_nothing_is_set():
    for name in SETTINGS:
        assert read(Options(), name) is None


@pytest.mark.parametrize(("name", "value"), SETTINGS.items())
def test_each_setting(name, value):
    options = made(**{name: value})
    assert read(options, name) == value
    assert options != Options()
    assert options == made(**{name: value})
    assert read(Options().merge(options), name) == value
    assert read(options.merge(Options()), name) == value
    for copied in (copy.deepcopy(options), pickle.loads(pickle.dumps(options))):
        assert copied == options
    assert repr(value) in repr(options)
    options = made(**{name: None})
    assert options == Options()


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("deterministic", 1, TypeError),
        ("deterministic", "no", TypeError),
        ("autotune", {}, TypeError),
        ("threading", None, TypeError),
        ("autotune__enabled", 0, TypeError),
        ("autotune__ram_budget", 1.5, TypeError),
        ("autotune__ram_budget", True, TypeError),
        ("autotune__ram_budget", "many", ValueError),
        ("autotune__ram_budget", -1, ValueError),
        ("autotune__cpu_budget", "2", TypeError),
        ("autotune__cpu_budget", True, TypeError),
        ("threading__private_threadpool_size", -1, ValueError),
        ("experimental_slack", True, AttributeError),
        ("autotune__autotune_algorithm", 0, AttributeError),
        ("threading__max_intra_op_parallelism", 1, AttributeError),
        ("parallel", True, AttributeError),
    ],
)
def test_what_is_no_setting(name, value, error):
    with pytest.raises(error):
        made(**{name: value})


def test_what_has_no_setting_says_what_it_has():
    with pytest.raises(AttributeError, match="autotune, deterministic, threading"):
        Options().threads = 2


def test_a_budget_is_bytes_or_has_a_unit():
    assert made(autotune__ram_budget="2KiB").autotune.ram_budget == 2048


def test_the_second_counts():
    first = made(deterministic=True, autotune__cpu_budget=2)
    second = made(deterministic=False, autotune__ram_budget=5)
    both = first.merge(second)
    assert both == made(
        deterministic=False, autotune__cpu_budget=2, autotune__ram_budget=5
    )
    with pytest.raises(TypeError, match="merges"):
        first.merge(first.autotune)


def test_a_dataset_keeps_what_was_set_then():
    options = made(deterministic=False)
    dataset = Dataset.range(3).with_options(options)
    options.deterministic = True
    options.autotune.cpu_budget = 4
    assert dataset.options() == made(deterministic=False)
    dataset.options().autotune.ram_budget = 7
    assert dataset.options() == made(deterministic=False)
    assert Dataset.range(3).options() == Options()


def test_steps_keep_options_and_joints_merge_them():
    first = Dataset.range(3).with_options(made(deterministic=False))
    assert first.map(lambda x: x).batch(2).options() == made(deterministic=False)
    assert first.with_options(made(autotune__cpu_budget=1)).options() == made(
        deterministic=False, autotune__cpu_budget=1
    )
    second = Dataset.range(3).with_options(made(deterministic=True))
    assert Dataset.zip(first, second).options().deterministic is True
    assert Dataset.zip(second, first).options().deterministic is False
    assert first.concatenate(second).options().deterministic is True
    assert list(first.with_options(Options())) == [0, 1, 2]


def test_what_are_no_options():
    with pytest.raises(TypeError, match="Options"):
        Dataset.range(3).with_options({"deterministic": False})
