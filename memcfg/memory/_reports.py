"""Reports for people: tables, bars, and who holds what.

Owns their text and layout. Every number comes from a resource.
"""

from __future__ import annotations

import heapq
import textwrap
from typing import TYPE_CHECKING

from rich.text import Text

from memcfg._checks import count
from memcfg._core import LiveBlock, MappedFile, Pool
from memcfg._tables import draw, new_table
from memcfg._terminal import WIDTH, fit, fit_name
from memcfg.memory._census import Selection, arena_rows, kind_of, label_of
from memcfg.units import format_bytes

if TYPE_CHECKING:
    from rich.table import Table

    from memcfg._core import Resource
    from memcfg.memory._census import Row

__all__ = ["list_live", "occupancy", "summary"]

_TAGS = 10  # rows in a table of tags
_NOTHING = "There is no resource."
_NARROWEST = 40  # columns of a bar
_LONGEST = 30  # columns of a name in a sentence
_LEGEND = (
    "* in use",
    "x kept by a thread for its next request",
    ". free with memory",
    "_ free without memory",
)


def summary(*resources: Resource) -> str:
    """Return a report on what resources hold, and for whom.

    Parameters
    ----------
    *resources : Resource
        The resources to report on. By default, all that are alive except adaptors,
        which have no memory of their own.

    Returns
    -------
    str
        Lines of at most 80 columns, without colours: the numbers of each resource from
        `Resource.stats`, then the tags that hold the most. The second table counts each
        byte once, even if resources stand on one another.

    Raises
    ------
    TypeError
        If an argument is not a resource.

    Examples
    --------
    >>> from memcfg import memory
    >>> pool = memory.Pool(limit="1MiB", name="scratch")
    >>> block = pool.allocate(1000, tag="window")
    >>> print(memory.summary(pool).splitlines()[-1].split())
    ['window', '1.00', 'KiB', '1,024', '100.0%']
    """
    selection = Selection(resources)
    if not selection.resources:
        return _NOTHING
    parts = [draw(_numbers(selection)), *_notes(selection)]
    tags = _tags(selection.owners())
    return "\n\n".join(parts if tags is None else [*parts, draw(tags)])


def _numbers(selection: Selection) -> Table:
    """Make a table with two lines for each resource."""
    table = new_table()
    table.add_column("Resource\n kind", no_wrap=True, width=17)
    for header, width in (
        ("In use\nPeak", 11),
        ("Requested\nReserved", 11),
        ("Limit\nLargest free", 12),
        ("Fragmentation\nAllocations", 13),
    ):
        table.add_column(header, justify="right", no_wrap=True, width=width)
    for resource in selection.resources:
        stats = resource.stats()
        table.add_row(
            Text(fit_name(label_of(resource), 17) + "\n " + kind_of(resource)),
            f"{_size(stats.current_bytes)}\n{_size(stats.peak_bytes)}",
            f"{_size(stats.requested_bytes)}\n{_size(stats.reserved_bytes)}",
            f"{_size(stats.limit_bytes)}\n{_size(stats.largest_free_bytes, 'any')}",
            f"{stats.fragmentation:.1%}\n{stats.allocation_count:,}",
        )
    return table


def _size(nbytes: int | None, unbounded: str = "none") -> str:
    return unbounded if nbytes is None else format_bytes(nbytes)


def _notes(selection: Selection) -> list[str]:
    """Return a sentence on bytes that two rows of the table both count."""
    lines = []
    for root in selection.roots():
        nbytes = selection.segment_bytes(root)
        if nbytes > 0:
            name = fit_name(label_of(root), _LONGEST).rstrip()
            lines.append(
                f"Of {name}, {format_bytes(nbytes)} are the pools' on top of it."
            )
    return ["\n".join(lines)] if lines else []


def _tags(owners: dict[str, int]) -> Table | None:
    """Make a table of the tags that hold the most; None if nothing is held."""
    total = sum(owners.values())
    if total == 0:
        return None
    table = new_table()
    table.add_column("Tag", no_wrap=True, width=34)
    for header, width in (("In use", 11), ("Bytes", 19), ("Share", 6)):
        table.add_column(header, justify="right", no_wrap=True, width=width)
    ranked = sorted(owners.items(), key=lambda row: (-row[1], row[0]))
    rest = ranked[_TAGS:]
    rows = ranked[:_TAGS]
    if rest:
        rows.append((f"{len(rest)} more", sum(nbytes for _, nbytes in rest)))
    for tag, nbytes in rows:
        share = f"{nbytes / total:.1%}"
        table.add_row(Text(fit(tag, 34)), format_bytes(nbytes), f"{nbytes:,}", share)
    return table


def occupancy(*resources: Resource, width: int = WIDTH) -> str:
    """Draw how full pools are, and the layout of their addresses.

    Parameters
    ----------
    *resources : Resource
        The resources to draw; an adaptor stands for the resource below it. By default,
        all that are alive.
    width : int, default 80
        Columns, at least 40.

    Returns
    -------
    str
        For each pool, a bar of its limit, or of its reserved bytes if it has none, and
        a bar of its addresses, which cost no memory, with scales in bytes and a legend
        of the letters. For each other resource, a line.

    Raises
    ------
    TypeError
        If an argument is not a resource, or `width` is not an int.
    ValueError
        If `width` is less than 40.

    Examples
    --------
    >>> from memcfg import memory
    >>> pool = memory.Pool(memory.simulated("1GiB"), limit="16MiB", name="GPU:0")
    >>> low = pool.allocate(4 * 2**20, lifetime="long")
    >>> high = pool.allocate(4 * 2**20, lifetime="short")
    >>> print(memory.occupancy(pool, width=50))
    GPU:0 (pool): 8.00 MiB in use of 16.00 MiB
    [************************________________________]
     0        a letter is 341.33 KiB        16.00 MiB
    where in its addresses:
    [***__________________________________________***]
     0         a letter is 1.33 MiB         64.00 MiB
    <BLANKLINE>
    * in use, x kept by a thread for its next request,
    . free with memory, _ free without memory
    """
    width = count(width, "a width", _NARROWEST)
    selection = Selection(resources).of_bases()
    if not selection.resources:
        return _NOTHING
    drawings = [_drawing(each, width) for each in selection.resources]
    return "\n\n".join([*drawings, _legend(width)])


def _legend(width: int) -> str:
    """Return the legend of the letters, without breaking entries."""
    unbroken = ", ".join(_LEGEND).replace(" ", "\xa0").replace(",\xa0", ", ")
    return textwrap.fill(unbroken, width).replace("\xa0", " ")


def _drawing(resource: Resource, width: int) -> str:
    name = fit_name(label_of(resource), min(width // 2, _LONGEST)).rstrip()
    lines = [fit(f"{name} {_state(resource)}", width).rstrip()]
    if isinstance(resource, Pool):
        lines += _bars(resource, width)
        arenas = [row.rounded_bytes for row in arena_rows(resource)]
        if arenas:
            size = format_bytes(sum(arenas))
            number = "an arena" if len(arenas) == 1 else f"{len(arenas)} arenas"
            lines.append(f"of it in {number}, elsewhere: {size}")
    return "\n".join(lines)


def _state(resource: Resource) -> str:
    stats = resource.stats()
    text = f"({kind_of(resource)}): {format_bytes(stats.current_bytes)} in use"
    if stats.limit_bytes is not None:
        text += f" of {format_bytes(stats.limit_bytes)}"
    if isinstance(resource, Pool):
        return text
    if isinstance(resource, MappedFile):
        return f"{text}, in a file"
    return f"{text}, no addresses of its own"


def _bars(pool: Pool, width: int) -> list[str]:
    stats = pool.stats()
    total = stats.reserved_bytes if stats.limit_bytes is None else stats.limit_bytes
    lines = _scaled(pool.occupancy(width - 2), total)
    places = pool.occupancy(width - 2, addresses=True)
    if places:
        lines += ["where in its addresses:", *_scaled(places, stats.address_bytes)]
    return lines or ["no addresses yet"]


def _scaled(bar: str, total: int) -> list[str]:
    """Return the lines of a bar above its scale; none for zero bytes."""
    if not bar:
        return []
    each = f"a letter is {format_bytes(total // len(bar))}"
    end = format_bytes(total)
    return [f"[{bar}]", f" 0{each:^{len(bar) - 1 - len(end)}}{end}"]


def list_live(*resources: Resource, top: int | None = 20) -> list[LiveBlock]:
    """List the blocks that hold the most memory.

    Parameters
    ----------
    *resources : Resource
        The resources; an adaptor has the blocks that were allocated through it. By
        default, all that are alive.
    top : int or None, default 20
        The number of blocks, at least 1; None lists all.

    Returns
    -------
    list of LiveBlock
        The blocks, the largest first. An arena is one block under its tag. Each is
        printed as one line.

    Raises
    ------
    TypeError
        If an argument is not a resource, or `top` neither an int nor None.
    ValueError
        If `top` is less than 1.

    Notes
    -----
    No byte is in two blocks of a list: a block that was allocated through several
    adaptors is listed once, and a block that a pool of the list has divided is not
    listed. The sum over all blocks of a pool is therefore its `requested_bytes`. The
    blocks of each resource are of one moment.

    Examples
    --------
    >>> from memcfg import memory
    >>> pool = memory.Pool(limit="64MiB", name="scratch")
    >>> blocks = [pool.allocate(n, tag=f"layer {n}") for n in (1000, 3000, 2000)]
    >>> [(block.tag, block.nbytes) for block in memory.list_live(pool, top=2)]
    [('layer 3000', 3000), ('layer 2000', 2000)]
    """
    selection = Selection(resources)
    if top is None:
        rows = sorted(selection.rows(), key=_rank)
    else:
        rows = heapq.nsmallest(count(top, "top"), selection.rows(), key=_rank)
    noted = {base: selection.noted(base) for base in {row.base for row in rows}}
    return [_live_block(row, noted[row.base].get(row.address)) for row in rows]


def _rank(row: Row) -> tuple[int, int]:
    return -row.nbytes, row.address


def _live_block(row: Row, known: LiveBlock | None) -> LiveBlock:
    if known is None or known.nbytes != row.nbytes:
        known = None  # the record is of an earlier block at this address
    return LiveBlock(
        resource=label_of(row.base),
        address=row.address,
        nbytes=row.nbytes,
        rounded_bytes=row.rounded_bytes,
        tag=row.tag,
        seconds=None if known is None else known.seconds,
        stack=() if known is None else known.stack,
        kind=row.kind,
        thread=None if known is None else known.thread,
    )
