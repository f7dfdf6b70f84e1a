# What the books list, row by row, for reports. A part of engine.pyx.


def layout_of(Pool pool not None):
    """List what lies where in a pool's addresses, all of one moment.

    A row is the state (``"block"``, ``"kept"``, ``"hole"``), the address, the bytes, how
    many of them have memory, the bytes asked for and the tag. A hole's row has memory
    throughout or nowhere. Rows are sorted by address; arenas are not among them.
    """
    cdef vector[native.Stretch] rows
    with nogil:
        rows = pool.pool.pieces()
    return [
        (
            STATES[row.state],
            row.address,
            row.size,
            row.committed,
            row.requested,
            as_text(row.tag),
        )
        for row in rows
    ]


def blocks_of(Resource resource not None):
    """List the blocks that are out, all of one moment, sorted by address.

    A row is the address, the bytes asked for, the same rounded up to 64, and the tag.
    """
    cdef vector[native.LiveBlock] rows
    with nogil:
        rows = resource.core.get().blocks()
    return [(row.address, row.requested, row.size, as_text(row.tag)) for row in rows]


def arena_of(Arena arena not None):
    """List an arena as a row of `blocks_of`: all its bytes, 0 once it is freed."""
    cdef size_t size = arena.core.get().requested()
    return <uintptr_t>arena.core.get().base(), size, rounded(size), arena.tag
