"""Configurations of workspaces, and the policies that they consist of.

The names are those of ND4J's WorkspaceConfiguration. A member of a policy is also its
lower-case word, so that ``"strict"`` may stand for `AllocationPolicy.STRICT`.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from enum import StrEnum
from operator import index
from typing import TYPE_CHECKING, Any

from memcfg._checks import count, flag
from memcfg._core._machine import machine_bytes
from memcfg.config._types import MAX_BYTES
from memcfg.errors import WorkspaceConfigError
from memcfg.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from os import PathLike
    from typing import Self


class Word(StrEnum):
    """An enumeration whose members can be given as words, in any case."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if isinstance(value, str) and value.lower() in cls._value2member_map_:
            return cls(value.lower())
        return None


class AllocationPolicy(Word):
    """The size of a page relative to the learned size."""

    STRICT = "strict"
    """Exactly that size."""
    OVERALLOCATE = "overallocate"
    """Larger by the fraction `overallocation`."""


class LearningPolicy(Word):
    """When a workspace without a page learns its size."""

    FIRST_LOOP = "first_loop"
    """At the end of the first cycle."""
    OVER_TIME = "over_time"
    """At the end of cycle `learning_cycles`; never by itself if that is 0."""
    NONE = "none"
    """Never: the page keeps its `initial_size`."""


class SpillPolicy(Word):
    """What happens to a request that does not fit the page."""

    EXTERNAL = "external"
    """It gets a block of its own."""
    REALLOCATE = "reallocate"
    """It gets a block of its own, and the page grows at the end of the cycle."""
    FAIL = "fail"
    """It is a `WorkspaceFullError`."""


class ResetPolicy(Word):
    """When allocation starts again at the beginning of a page."""

    BLOCK_LEFT = "block_left"
    """In each cycle."""
    ENDOFBUFFER_REACHED = "endofbuffer_reached"
    """When it is used up: a ring. ``"end_of_buffer"`` is the same."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if isinstance(value, str) and value.lower() == "end_of_buffer":
            return cls.ENDOFBUFFER_REACHED
        return super()._missing_(value)


class MirroringPolicy(Word):
    """Whether a workspace has a page on its device as well as on the host.

    The arrays of a workspace are NumPy's, which lie in host memory.
    """

    FULL = "full"
    """Both. On a CPU they are the same page; for a GPU it is refused."""
    HOST_ONLY = "host_only"
    """On the host only."""


class LocationPolicy(Word):
    """The location of a page."""

    RAM = "ram"
    """In the memory of a pool."""
    MMAP = "mmap"
    """In a mapped file."""


class EscapePolicy(Word):
    """What happens to arrays that outlive the cycle in which they were made."""

    RETIRE = "retire"
    """They keep the page, and the next cycle gets another one."""
    WARN = "warn"
    """As RETIRE, and a warning names them."""
    ERROR = "error"
    """As RETIRE, and the end of the scope raises an error that names them."""
    INVALIDATE = "invalidate"
    """The page is used again, over them: ND4J's rule."""


class DebugMode(Word):
    """Debug modes of all workspaces of the process."""

    DISABLED = "disabled"
    """They do what they are configured to do."""
    SPILL_EVERYTHING = "spill_everything"
    """Every array gets a block of its own; nothing is learned."""
    BYPASS_EVERYTHING = "bypass_everything"
    """Arrays are made as if there were no workspaces."""


@dataclass(frozen=True, init=False)
class WorkspaceConfig:
    """The configuration of a workspace.

    Sizes are in bytes: a number, a string with its unit (``"8MiB"``), or a percentage
    of the machine's memory (``"50%"``). Policies are members of their enumerations, or
    their words in lower case. Attributes are always numbers and members.

    Parameters
    ----------
    initial_size : int or str, default 0
        The size of the page at the start; 0 is no page.
    min_size : int or str, default 0
        The minimum of a learned size.
    max_size : int, str or None, default None
        The maximum of every size; None is no bound.
    overallocation : float, default 0.3
        The fraction by which a page is larger than the learned size, or `initial_size`,
        under "overallocate". It gives the `ring_blocks` of a ring, which needs 1 or
        more.
    allocation : AllocationPolicy or str, default "overallocate"
        "strict" or "overallocate".
    learning : LearningPolicy or str, default "first_loop"
        "first_loop", "over_time" or "none".
    spill : SpillPolicy or str, default "external"
        What happens to a request that does not fit: "external", "reallocate" or "fail".
    reset : ResetPolicy or str, default "block_left"
        "block_left", or "end_of_buffer" for a ring.
    mirroring : MirroringPolicy or str, default "host_only"
        "host_only", or "full" for a page on the device too. They are the same on a CPU.
        No workspace has a page on a GPU, so `Workspace` refuses "full" there.
    location : LocationPolicy or str, default "ram"
        "ram", or "mmap" for a page that is a whole mapped file, of exactly
        `initial_size` bytes.
    path : str, path-like or None, default None
        The file of an "mmap" workspace. None is a temporary one, which is removed.
    overwrite : bool, default False
        Whether an existing file is replaced. By default its bytes are kept.
    learning_cycles : int, default 0
        Number of cycles after which "over_time" learns. 0 waits for
        `Workspace.initialize`. Ignored by other policies.
    on_escape : EscapePolicy or str, default "retire"
        What happens to arrays that outlive their cycle: "retire", "warn", "error" or
        "invalidate".
    reclaim : bool, default False
        Whether the newest array releases its bytes as soon as it is destroyed.
    capture_numpy : bool, default True
        Whether the arrays that NumPy makes inside the scope are made in the workspace.

    Raises
    ------
    WorkspaceConfigError
        If a value is not of its kind; a size is beyond the address space, or above
        `max_size`; a ring over-allocates by less than 1, or is to reclaim; an "mmap"
        workspace learns, or has neither a path nor an initial size; a path is given
        and the location is not "mmap", or `overwrite` without a path.

    Notes
    -----
    The size of a page is

    * at first ``initial + int(initial * overallocation)``, at most `max_size`;
    * learned: ``cycle + int(cycle * overallocation)``, at least `min_size`, at most
      `max_size`, where ``cycle`` is the maximum that a cycle took;
    * of a ring, learned: `ring_blocks` blocks of ``int(cycle * 1.3)`` bytes, rounded up
      beyond the next multiple of 64, within `min_size` and `max_size` too.

    The policies are those of ND4J's WorkspaceConfiguration (Deeplearning4j 1.0.0-M1),
    whose default for `mirroring` is "full".

    Examples
    --------
    >>> from memcfg.config import WorkspaceConfig
    >>> config = WorkspaceConfig(initial_size="8MiB", spill="fail")
    >>> config.initial_size, config.spill.name
    (8388608, 'FAIL')
    >>> config.replace(reset="end_of_buffer", overallocation=3).ring_blocks
    4
    """

    initial_size: int
    min_size: int
    max_size: int | None
    overallocation: float
    allocation: AllocationPolicy
    learning: LearningPolicy
    spill: SpillPolicy
    reset: ResetPolicy
    mirroring: MirroringPolicy
    location: LocationPolicy
    path: str | None
    overwrite: bool
    learning_cycles: int
    on_escape: EscapePolicy
    reclaim: bool
    capture_numpy: bool

    def __init__(
        self,
        *,
        initial_size: int | str = 0,
        min_size: int | str = 0,
        max_size: int | str | None = None,
        overallocation: float = 0.3,
        allocation: AllocationPolicy | str = AllocationPolicy.OVERALLOCATE,
        learning: LearningPolicy | str = LearningPolicy.FIRST_LOOP,
        spill: SpillPolicy | str = SpillPolicy.EXTERNAL,
        reset: ResetPolicy | str = ResetPolicy.BLOCK_LEFT,
        mirroring: MirroringPolicy | str = MirroringPolicy.HOST_ONLY,
        location: LocationPolicy | str = LocationPolicy.RAM,
        path: str | PathLike[str] | None = None,
        overwrite: bool = False,
        learning_cycles: int = 0,
        on_escape: EscapePolicy | str = EscapePolicy.RETIRE,
        reclaim: bool = False,
        capture_numpy: bool = True,
    ) -> None:
        given = locals()
        for name, check in _CHECKS.items():
            try:
                value = check(given[name], name)
            except (TypeError, ValueError) as error:
                raise WorkspaceConfigError(str(error)) from None
            object.__setattr__(self, name, value)  # the class is frozen
        _check_sizes(self)
        _check_ring(self)
        _check_file(self)

    @property
    def circular(self) -> bool:
        """Return whether the workspace is a ring."""
        return self.reset is ResetPolicy.ENDOFBUFFER_REACHED

    @property
    def ring_blocks(self) -> int:
        """Return the number of blocks of a ring, one for each cycle, or 1."""
        if not self.circular or self.allocation is AllocationPolicy.STRICT:
            return 1
        return int(self.overallocation + 1)

    def replace(self, **changes: Any) -> Self:
        """Return a copy of the configuration with some fields changed.

        Parameters
        ----------
        **changes
            Fields and their new values, as the constructor takes them.

        Raises
        ------
        WorkspaceConfigError
            If a name is not a field, or the result is not a configuration.
        """
        return self.from_dict({**vars(self), **changes})

    def to_dict(self) -> dict[str, int | float | str | bool | None]:
        """Return the fields as plain data, for example for JSON.

        Returns
        -------
        dict
            The fields by name; policies as words, sizes in bytes.
        """
        return {
            name: value.value if isinstance(value, StrEnum) else value
            for name, value in vars(self).items()
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Make a configuration from plain data.

        Parameters
        ----------
        data : mapping of str to object
            Fields by name, as `to_dict` returns them; those left out are the defaults.

        Raises
        ------
        WorkspaceConfigError
            If a name is not a field, or a value is invalid.
        """
        unknown = [name for name in data if name not in _CHECKS]
        if unknown:
            raise WorkspaceConfigError(
                f"a workspace has no setting {', '.join(map(repr, unknown))}; it has "
                f"{', '.join(_CHECKS)}"
            )
        return cls(**data)


def _size(value: Any, name: str) -> int | None:
    if value is None and name == "max_size":
        return None
    if hasattr(value, "__index__") and not isinstance(value, bool):
        value = index(value)  # NumPy's integers too
    try:
        # The size of the machine's memory is needed only for percentages.
        total_bytes = machine_bytes() if isinstance(value, str) else None
        nbytes = parse_bytes(value, total_bytes=total_bytes)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: {error}") from None
    if nbytes > MAX_BYTES:
        raise ValueError(f"{name}={value!r} is beyond the address space")
    return nbytes


def _fraction(value: Any, name: str) -> float:
    try:
        fraction = math.nan if isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError, OverflowError):
        fraction = math.nan
    if not 0 <= fraction < math.inf:
        raise ValueError(
            f"{name} is a fraction such as 0.3, finite and not negative, not {value!r}"
        )
    return fraction


def _member(kind: type[StrEnum]) -> Callable[[Any, str], StrEnum]:
    def check(value: Any, name: str) -> StrEnum:
        try:
            return kind(value)
        except ValueError:
            words = ", ".join(repr(member.value) for member in kind)
            raise ValueError(f"{name} is one of {words}, not {value!r}") from None

    return check


def _path(value: Any, name: str) -> str | None:
    try:
        return None if value is None else os.fsdecode(value)
    except TypeError:
        raise TypeError(
            f"{name} is the name of a file or None, not {value!r}"
        ) from None


_CHECKS: dict[str, Callable[[Any, str], Any]] = {
    **dict.fromkeys(("initial_size", "min_size", "max_size"), _size),
    "overallocation": _fraction,
    "allocation": _member(AllocationPolicy),
    "learning": _member(LearningPolicy),
    "spill": _member(SpillPolicy),
    "reset": _member(ResetPolicy),
    "mirroring": _member(MirroringPolicy),
    "location": _member(LocationPolicy),
    "path": _path,
    "overwrite": flag,
    "learning_cycles": lambda value, name: count(value, name, 0),
    "on_escape": _member(EscapePolicy),
    "reclaim": flag,
    "capture_numpy": flag,
}


def _check_sizes(config: WorkspaceConfig) -> None:
    largest = config.max_size
    if largest == 0:
        raise WorkspaceConfigError("max_size is positive; None is no bound")
    for name in ("initial_size", "min_size"):
        nbytes = getattr(config, name)
        if largest is not None and nbytes > largest:
            raise WorkspaceConfigError(
                f"{name}={nbytes} is above max_size={largest}: lower it or raise "
                "max_size"
            )


def _check_ring(config: WorkspaceConfig) -> None:
    if not config.circular:
        return
    if config.ring_blocks < 2 and config.allocation is AllocationPolicy.OVERALLOCATE:
        raise WorkspaceConfigError(
            "a ring over-allocates by 1 or more, a block for each further cycle that "
            f"stays readable, not by {config.overallocation}: write overallocation=3 "
            "for a ring of 4, or use RingWorkspace(slots=4)"
        )
    if config.reclaim:
        raise WorkspaceConfigError(
            "a ring cannot reclaim: write reclaim=False, or reset='block_left'"
        )


def _check_file(config: WorkspaceConfig) -> None:
    if config.location is LocationPolicy.RAM:
        if config.path is not None or config.overwrite:
            raise WorkspaceConfigError(
                "path and overwrite are for location='mmap'; this one is in memory"
            )
        return
    if config.learning is not LearningPolicy.NONE:
        raise WorkspaceConfigError(
            "the size of a mapped file is fixed: write learning='none' with "
            "location='mmap', and an initial_size"
        )
    if config.path is None and (config.initial_size == 0 or config.overwrite):
        raise WorkspaceConfigError(
            "an 'mmap' workspace needs a path, or an initial_size for a temporary "
            "file; overwrite is for a path"
        )
