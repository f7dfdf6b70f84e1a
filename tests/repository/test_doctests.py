"""The examples in docstrings run."""

from __future__ import annotations

import doctest
import importlib

import pytest
from modules import module_names


@pytest.mark.parametrize("name", module_names())
def test_examples(name):
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert failed == 0
