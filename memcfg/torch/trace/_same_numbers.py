"""Random numbers that are the same after something as they would be without it."""

from __future__ import annotations

import random
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def same_numbers() -> Iterator[None]:
    """Leave the generators of PyTorch, Python and NumPy as they were."""
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    pythons, numpys = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=gpus):
            yield
    finally:
        random.setstate(pythons)
        np.random.set_state(numpys)  # noqa: NPY002
