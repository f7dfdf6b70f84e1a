"""The long soak of arrays in pools; the short one is in tests/memory."""

from __future__ import annotations

import pytest
from array_soak import soak_alone

pytestmark = pytest.mark.parity


def test_a_million_operations(tenths):
    print(soak_alone(100_000 * tenths, derandomize=tenths == 1))
