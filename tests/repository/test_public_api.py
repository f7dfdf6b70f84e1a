"""What is public exists, is documented, and is reachable as the README says."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from enum import Enum
from typing import Protocol

import pytest
from modules import module_names

import memcfg

# What `import memcfg` offers, the command line, and what needs PyTorch.
ROOMS = {*memcfg.__all__, "cli", "torch"}
PUBLIC = [
    name
    for name in ["memcfg", *module_names()]
    if not any(part.startswith("_") for part in name.split("."))
    if name == "memcfg" or name.split(".")[1] in ROOMS
]


def test_the_rooms_are_found():
    assert {
        "memcfg.config",
        "memcfg.data",
        "memcfg.nn",
        "memcfg.plan",
        "memcfg.cli",
    } <= set(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_every_name_in_all_exists_once_and_is_documented(name):
    module = importlib.import_module(name)
    assert module.__doc__
    names = module.__all__
    assert len(names) == len(set(names))
    for public in names:
        value = getattr(module, public)
        if inspect.isroutine(value) or inspect.isclass(value):
            assert inspect.getdoc(value), f"{name}.{public} has no docstring"


@pytest.mark.parametrize("name", PUBLIC)
def test_public_classes_document_their_methods(name):
    module = importlib.import_module(name)
    bare = [
        f"{public}.{method}"
        for public in module.__all__
        if inspect.isclass(value := getattr(module, public))
        and value.__module__.startswith("memcfg")
        for method, member in vars(value).items()
        if not method.startswith("_")
        and (inspect.isfunction(member) or isinstance(member, property | classmethod))
        and not inspect.getdoc(getattr(value, method))
    ]
    assert bare == []


def public_callables(name):
    """Yield the functions, classes and public methods that a module offers first."""
    module = importlib.import_module(name)
    for public in module.__all__:
        value = getattr(module, public)
        if inspect.isfunction(value):
            yield f"{name}.{public}", value
        if inspect.isclass(value) and value.__module__.startswith("memcfg."):
            yield f"{name}.{public}", value
            for method, member in vars(value).items():
                overrides = any(hasattr(base, method) for base in value.__bases__)
                if inspect.isfunction(member) and not (
                    method.startswith("_") or overrides  # the base says what it takes
                ):
                    yield f"{name}.{public}.{method}", member


def undocumented(value):
    """Name the parameters that the docstring leaves out."""
    if inspect.isclass(value) and issubclass(value, BaseException | Protocol | Enum):
        return []  # raised, implemented, looked up
    text = inspect.getdoc(value) or ""
    try:
        names = inspect.signature(value).parameters
    except ValueError:
        return []  # compiled: no signature to compare with
    parameters = [name for name in names if name not in ("self", "_")]
    return [
        name
        for name in parameters
        if not re.search(rf"^[*\\\w, ]*\b{name}\b[\w, ]* :", text, re.MULTILINE)
        and not re.search(rf"^\\?\*+{name}$", text, re.MULTILINE)
    ]


@pytest.mark.parametrize("name", PUBLIC)
def test_public_parameters_are_documented(name):
    found = {
        where: missing
        for where, value in public_callables(name)
        if (missing := undocumented(value))
    }
    assert found == {}


def test_a_parameter_that_is_not_documented_is_found():
    def function(first, second, *rest, **others):
        """Do.

        Parameters
        ----------
        first : int
            Here.
        *rest : int
            Here too.
        **others
            And here.
        """

    assert undocumented(function) == ["second"]


def test_importing_the_package_loads_no_room():
    script = (
        "import sys, memcfg; "
        "print([name for name in sys.modules if name.startswith('memcfg.')])"
    )
    out = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    rooms = ["memcfg._missing", "memcfg._tensorflow_names", "memcfg._version"]
    assert out.stdout.strip() == str(rooms)


@pytest.mark.parametrize(
    "name", ["memcfg", "memcfg.config", "memcfg.nn", "memcfg.plan"]
)
def test_dir_lists_what_is_public(name):
    module = importlib.import_module(name)
    names = {each for each in dir(module) if not each.startswith("__")}
    assert names == {each for each in module.__all__ if not each.startswith("__")}


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nothing_like_it"):
        memcfg.nothing_like_it  # noqa: B018 - the look-up is the test


@pytest.mark.parametrize(("name", "room"), memcfg._MOVED.items())
def test_a_name_that_moved_warns_and_is_the_same(name, room):
    with pytest.warns(DeprecationWarning, match=rf"use memcfg\.{room}\.{name}$"):
        found = getattr(memcfg, name)
    assert found is getattr(importlib.import_module(f"memcfg.{room}"), name)
    assert name not in dir(memcfg)
