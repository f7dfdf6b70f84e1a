"""NumPy's arrays under a limit, and the resource that an array belongs to.

Owns the two functions that allocate arrays from a resource and find their resource.
NumPy's C API is used only in `memcfg._core`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._core import NumpyAllocator, resource_of

if TYPE_CHECKING:
    from memcfg._core import Resource


def numpy_allocator(resource: Resource, *, tag: str = "numpy") -> NumpyAllocator:
    """Allocate the arrays that NumPy makes inside a ``with`` block from a resource.

    Parameters
    ----------
    resource : Resource
        The resource that provides their memory, under its limit.
    tag : str, default "numpy"
        The holder, for statistics and messages. Inside `memcfg.memory.tag`, that tag is
        used instead.

    Returns
    -------
    NumpyAllocator
        A context manager with `resource`, `tag` and `refusal`, the last failure. As a
        decorator, it runs a function in an allocator of its own.

    Raises
    ------
    TypeError
        If `resource` is not a resource, or `tag` is not a string.
    ValueError
        If the resource is a simulated device's, which has no memory.

    Notes
    -----
    Only the data of arrays is allocated there, and not the objects or strings that an
    array refers to, the bytes of an unpickled array, or what other libraries allocate
    for themselves. An array that outlives the block stays where it is. It is freed when
    its last view is, in any thread, and keeps the resource alive until then. A list of
    arrays in a failure callback of that same resource therefore keeps the resource and
    the arrays alive until they are removed from the list.

    If an allocation fails, NumPy raises a MemoryError of its own. When that leaves the
    block, it becomes the `ResourceExhaustedError` of the resource, raised from NumPy's;
    if it is caught inside, `refusal` has the reason. An exception of a failure callback
    is raised at the end of the block, unless the block is left by a Ctrl-C; until then,
    NumPy raises a MemoryError in its place. Only the last failure is converted, and
    none inside an ExceptionGroup. The `retry_seconds` of a pool apply, but not those of
    a pool below another resource.

    An allocator applies to the current thread, and to tasks that are started inside
    (NumPy keeps it in a context variable). A thread started inside begins with NumPy's
    own allocator, outside of the limit: enter an allocator there, or run a decorated
    function. Entering an allocator twice, leaving it in another context, or leaving it
    before one that was entered later raises a RuntimeError, and the current allocator
    stays; leaving the later one then leaves both. A generator should therefore not
    yield inside the block, unless it is the only one and runs to its end.

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
    """Return the resource of an array's memory, through all views.

    Parameters
    ----------
    array : numpy.ndarray
        An array, or a view of one, of a `Block` or of an `Arena`.

    Returns
    -------
    Resource or None
        The resource; None if the memory is NumPy's own or that of another library.

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
