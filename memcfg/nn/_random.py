"""Seeds: a process-wide source draws those that callers do not give.

A seed is a value; each user of a seed has a generator of its own.
"""

from __future__ import annotations

import os
import random
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from memcfg.nn._argument_checks import integer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "SeedMark",
    "derive_seed",
    "fixed_seed",
    "next_seed",
    "same_seeds",
    "seeds_of_refused",
    "set_random_seed",
]

_SEED_MASK = 2**63 - 1
_lock = threading.RLock()  # held across a fork, as is the generator's own lock
_source = np.random.default_rng()
_draws = 0  # seeds drawn by all threads
_own = threading.local()  # `draws`: those of each thread
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_lock.acquire,
        after_in_parent=_lock.release,
        after_in_child=_lock.release,
    )


def set_random_seed(seed: int) -> None:
    """Make all subsequent random operations reproducible.

    Weights, dropout and shuffling without a seed of their own draw one from the
    sequence that starts here. A layer draws its seed when it is constructed, so
    call this before making layers. A call of a model that is refused, such as `fit`
    of a batch that does not fit, leaves the sequence where it was. Like Keras's
    function, this also seeds the global generators of NumPy, with the last 32 bits,
    and of Python's `random`.

    Parameters
    ----------
    seed : int
        Zero or more.

    Raises
    ------
    TypeError
        If `seed` is not an integer.
    ValueError
        If `seed` is negative.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.nn.set_random_seed(7)
    """
    global _source
    number = integer(seed, "a seed", 0)
    generator = np.random.default_rng(number)
    with _lock:
        _source = generator
        random.seed(number)
        np.random.seed(number % 2**32)  # noqa: NPY002  (what callers draw from)


def fixed_seed(seed: int | None) -> int | None:
    """Return a caller's seed as a plain int, or None if none is given."""
    return None if seed is None else integer(seed, "a seed", 0)


def next_seed() -> int:
    """Draw the next seed of the process."""
    global _draws
    with _lock:
        _draws += 1
        _own.draws = getattr(_own, "draws", 0) + 1
        return int(_source.integers(0, _SEED_MASK, endpoint=True))


class SeedMark:
    """A place in the sequence of seeds, to which a refused call goes back."""

    def __init__(self) -> None:
        with _lock:
            self._source, self._state = _source, _source.bit_generator.state
            self._others = _draws - getattr(_own, "draws", 0)

    def restore(self) -> None:
        """Go back, unless another thread has drawn or the sequence began anew."""
        with _lock:
            others = _draws - getattr(_own, "draws", 0)
            if self._source is _source and self._others == others:
                _source.bit_generator.state = self._state


@contextmanager
def seeds_of_refused(
    *passing: type[BaseException],
) -> Iterator[Callable[[], None]]:
    """Put the sequence of seeds back if the block raises, except for some errors.

    The caller calls what it gets once nothing is refused any more.
    """
    mark: SeedMark | None = SeedMark()

    def keep() -> None:
        nonlocal mark
        mark = None

    try:
        yield keep
    except BaseException as error:
        if mark is not None and not isinstance(error, passing):
            mark.restore()
        raise


@contextmanager
def same_seeds() -> Iterator[None]:
    """Leave the sequence of seeds as it is by what is made inside."""
    global _source
    with _lock:
        before = _source
        _source = np.random.default_rng(0)
        try:
            yield
        finally:
            _source = before


def derive_seed(seed: int, *path: int) -> int:
    """Derive an independent seed for one of several uses of `seed`."""
    words = np.random.SeedSequence(seed, spawn_key=path).generate_state(1, np.uint64)
    return int(words[0]) & _SEED_MASK
