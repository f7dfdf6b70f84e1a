"""Random work on arrays in pools, by threads that hand arrays to one another."""

from __future__ import annotations

import pytest
from array_soak import soak_alone


@pytest.mark.slow
def test_no_array_changes_under_its_owner_and_nothing_is_left():
    print(soak_alone(operations=100_000))
