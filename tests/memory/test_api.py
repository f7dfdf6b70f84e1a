"""The compiled classes are documented as the others are."""

from __future__ import annotations

import inspect
import re

import pytest

from memcfg import memory

CLASSES = [
    value
    for name in memory.__all__
    if inspect.isclass(value := getattr(memory, name)) and "engine" in value.__module__
]


def methods(kind):
    for name, member in vars(kind).items():
        if not name.startswith("_") and callable(member):
            yield member


@pytest.mark.parametrize("kind", CLASSES)
def test_every_parameter_is_documented(kind):
    for method in methods(kind):
        text = inspect.getdoc(method) or ""
        for name in list(inspect.signature(method).parameters)[1:]:
            assert re.search(rf"^{name} : ", text, re.MULTILINE), (method, name)


@pytest.mark.parametrize("kind", CLASSES)
def test_every_method_and_attribute_is_documented(kind):
    attributes = (inspect.getdoc(kind) or "").partition("Attributes\n")[2]
    for name, member in vars(kind).items():
        if not name.startswith("_"):
            assert inspect.getdoc(member) or f"{name} :" in attributes, name


def test_the_functions_make_what_they_say():
    pool = memory.Pool()
    assert isinstance(memory.system(), memory.SystemResource)
    assert isinstance(memory.simulated(1), memory.SimulatedResource)
    assert isinstance(memory.limiting(pool, 1), memory.LimitingResource)
    assert isinstance(memory.statistics(pool), memory.StatisticsResource)
    asking = memory.failure_callback(pool, bool)
    assert isinstance(asking, memory.FailureCallbackResource)
    assert (asking.callback, asking.upstream, pool.upstream) == (bool, pool, None)
    assert all(issubclass(kind, memory.Resource) for kind in map(type, (pool, asking)))


@pytest.mark.parametrize("bad", [None, 3, "pool"])
def test_what_stands_below_must_be_a_resource(bad):
    for make in (memory.statistics, lambda up: memory.limiting(up, 1)):
        with pytest.raises(TypeError):
            make(bad)
    for make in (memory.system, lambda name: memory.simulated(1, name=name)):
        with pytest.raises(TypeError):
            make(3)
