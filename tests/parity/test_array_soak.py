"""The long soak of arrays in pools; the short one is in tests/memory."""

from __future__ import annotations

import pytest
from array_soak import soak_alone

pytestmark = [pytest.mark.parity, pytest.mark.slow]


def test_a_million_operations():
    print(soak_alone(operations=1_000_000))
