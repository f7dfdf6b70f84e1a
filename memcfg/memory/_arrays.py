"""NumPy's arrays under a limit, and whose memory an array is.

Owns the two functions by which a user puts arrays into a resource and finds it again.
Refuses to touch NumPy's C API: `memcfg._core` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._core import NumpyAllocator, resource_of

if TYPE_CHECKING:
    from memcfg._core import Resource


def numpy_allocator(resource: Resource, *, tag: str = "numpy") -> NumpyAllocator:
    """Put the arrays that NumPy makes inside a ``with`` block into a resource.

    Parameters
    ----------
    resource : Resource
        Where their memory comes from, and whose limit they obey.
    tag : str, default "numpy"
        Who holds it, for statistics and messages; inside `memcfg.memory.tag` it is that
        tag.

    Returns
    -------
    NumpyAllocator
        A context manager with `resource`, `tag` and `refusal`, the last failure. As a
        decorator it makes a function run in an allocator of its own.

    Raises
    ------
    TypeError
        If `resource` is not a resource, or `tag` is not a string.
    ValueError
        If the resource is a simulated device's, which has no memory.

    Notes
    -----
    Only the arrays' data is meant: what an array of objects or of StringDType refers
    to, an unpickled array's bytes, and what other libraries allocate for themselves, is
    elsewhere. An array that outlives the block
    stays where it is and goes back when its last view goes, in whatever thread; it
    keeps the resource alive until then. Arrays in a list that a failure callback of
    that same resource holds therefore keep it, and themselves, until they are taken
    out.

    NumPy fails an array with a MemoryError of its own. When that leaves the block it
    becomes the `ResourceExhaustedError` of the resource, raised from NumPy's; caught
    inside, `refusal` says what it was. What a failure callback raises is raised when
    the block is left, unless a Ctrl-C leaves it; until then NumPy tells of a
    MemoryError in its place. The last failure only is converted, and none inside an
    ExceptionGroup. A pool's `retry_seconds` are waited for, those of a pool below
    another resource are not.

    An allocator holds for the running thread, and for tasks that are started inside
    (NumPy keeps it in a context variable). A thread started inside begins with NumPy's
    own, outside of the limit: enter an allocator there, or start it with a decorated
    function. Entering one that is entered, leaving it elsewhere than it was entered, or
    before one that was entered after it, is a RuntimeError, and the allocator in place
    stays; the later one then leaves both. So a generator should not yield inside the
    block, unless it is the only one and runs to its end.

    Examples
    --------
    >>> import numpy as np
    >>> from memcfg import memory
    >>> pool = memory.Pool(limit="1MiB")
    >>> try:
    ...     with memory.numpy_allocator(pool):
    ...         a = np.zeros(1000)
    ...         np.zeros(200_000)
    ... except MemoryError as error:
    ...     print(error.message, error.requested_bytes)
    A request does not fit the memory limit. 1600000
    >>> pool.owners(), memory.owner_of(a[::2]) is pool
    ({'numpy': 8000}, True)

    In threads:

    >>> from concurrent.futures import ThreadPoolExecutor
    >>> with ThreadPoolExecutor(2) as workers:
    ...     made = list(workers.map(memory.numpy_allocator(pool)(np.ones), [10, 20]))
    >>> pool.stats().requested_bytes
    8240
    """
    return NumpyAllocator(resource, tag=tag)


def owner_of(array: np.ndarray[Any, Any]) -> Resource | None:
    """Find the resource that an array's memory came from, through all views.

    Parameters
    ----------
    array : numpy.ndarray
        An array, or a view of one, of a `Block` or of an `Arena`.

    Returns
    -------
    Resource or None
        The resource; None where the memory is NumPy's own or somebody else's.

    Raises
    ------
    TypeError
        If `array` is not an array.

    Examples
    --------
    >>> import numpy as np
    >>> from memcfg import memory
    >>> pool = memory.Pool()
    >>> window = np.frombuffer(pool.allocate(4000), np.float32).reshape(10, 100)
    >>> memory.owner_of(window.T) is pool, memory.owner_of(np.ones(3)) is None
    (True, True)
    """
    if not isinstance(array, np.ndarray):
        raise TypeError(f"not an array: {array!r}")
    return resource_of(array)
