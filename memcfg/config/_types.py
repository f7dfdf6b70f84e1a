"""The values of configurations: devices, their names, memory limits.

In a `LogicalDeviceConfiguration` a number is MiB; everywhere else it is bytes. Strings
have a unit in both, and ``"50%"`` is a fraction of the device's memory.
"""

from __future__ import annotations

import itertools
import math
import os
import re
from dataclasses import dataclass, field
from fractions import Fraction
from numbers import Rational, Real
from operator import index
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from memcfg._checks import count
from memcfg.devices import LANE_TIMEOUT, Spill, SpillPlace
from memcfg.units import parse_bytes, warn_of_few_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    _Value = TypeVar("_Value")
    _Several: TypeAlias = _Value | Sequence[_Value]

MAX_BYTES = 2**63 - 1  # maximum of a signed 64-bit size
_MIB = 2**20  # bytes
_ENDLESS = 10**9  # seconds (30 years) from which on a timeout is infinite

# The grammar of names is TensorFlow's.
_PROCESS = (
    r"(?:/job:(?P<job>[A-Za-z0-9_.-]+))?"
    r"(?:/replica:(?P<replica>[0-9]+))?(?:/task:(?P<task>[0-9]+))?"
)
_THIS_PROCESS = {"job": "localhost", "replica": "0", "task": "0"}
_NUMBERED = r"(?P<type>[A-Za-z_][A-Za-z0-9_]*):(?:(?P<index>[0-9]{1,9})|\*)"
# A type without an index, "CPU" or "cpu"; any other word is likelier a mistake.
_ALONE = r"(?P<alone>[A-Z][A-Z0-9_]*|[a-z]pu)"
_NAME = re.compile(
    rf"(?:{_PROCESS}/)?(?:device:|(?P<physical>physical_device:))?"
    rf"(?:{_NUMBERED}|{_ALONE})"
)
_TYPE = re.compile(r"[A-Z][A-Z0-9_]*")
_OTHERS = re.compile(r"/?(?:device:)?cuda(?::([0-9]+))?", re.IGNORECASE)
TYPES = ("CPU", "GPU", "TPU")  # TensorFlow's types, supported here or not


@dataclass(frozen=True)
class PhysicalDevice:
    """A piece of hardware, as found on this machine.

    Attributes
    ----------
    name : str
        Such as ``"/physical_device:CPU:0"``.
    device_type : str
        Such as ``"CPU"``.
    """

    name: str
    device_type: str


@dataclass(frozen=True)
class LogicalDevice:
    """A device on which models are placed, with its own memory limit.

    Attributes
    ----------
    name : str
        Such as ``"/device:CPU:0"``.
    device_type : str
        Such as ``"CPU"``.
    """

    name: str
    device_type: str


@dataclass(frozen=True)
class LogicalDeviceConfiguration:
    """The configuration of one logical device.

    Parameters
    ----------
    memory_limit : int, float, str or None, default None
        The maximum of bytes in use. A number is MiB, a string is exact
        (``"4100031B"``, ``"4MiB"``) or a percentage of the hardware's memory
        (``"50%"``), None is no limit. A GPU needs one.
    experimental_priority : int or None, default None
        The priority of the device's streams: of all logical devices of a GPU or of
        none; refused for a CPU.
    experimental_device_ordinal : int or None, default None
        The position of the device among those of its type: they are sorted by ordinal,
        then by hardware. For all logical devices of a GPU or for none; refused for a
        CPU.
    growth : bool or None, default None
        Whether memory is allocated as needed (True) or the whole limit at once. None
        uses the setting of `set_memory_growth`.
    spill_to : str, path, sequence of these or None, default None
        The tiers for swapped tensors: ``"host"`` for host memory outside of the limit,
        or a folder for an unnamed temporary file. With several tiers, fastest first, a
        tensor is swapped to the first one with room for it. None: the plan decides.
    spill_limit : int, float, str, sequence of these or None, default None
        The maximum of swapped bytes at a time, as for `memory_limit`; a percentage is
        of the hardware's memory. None is no limit. One for each tier.
    lane_bandwidth : int, float, str, sequence of these or None, default None
        The maximum of bytes copied per second in each direction: a number is MiB, a
        string is exact (``"2GB"``). None is no limit. One for each tier. Refused for a
        real GPU.
    lane_timeout : float or None, default None
        Seconds after which a step fails if a copy to or from a file, or a collective of
        several ranks, makes no progress, such as on a disk that hangs; 1e9 or more is
        never. None is 300. Refused for a real GPU.

    Raises
    ------
    TypeError
        If `memory_limit`, `spill_limit` or `lane_bandwidth` is not a number, a string
        or None, or is a bool; or a priority or ordinal is not an int, `growth` is not a
        bool, `spill_to` is not a path, or `lane_timeout` is not a number.
    ValueError
        If `memory_limit`, `spill_limit` or `lane_bandwidth` is not positive and finite,
        is not a whole number of bytes, or is a string that is not a size; the ordinal
        is negative; `spill_to` is empty or names a tier twice; `lane_timeout` is not
        positive; a limit, a bandwidth or a timeout is given without `spill_to`; or the
        number of limits or bandwidths differs from that of tiers.

    Examples
    --------
    >>> LogicalDeviceConfiguration(memory_limit=48).limit_on(2**34)
    50331648
    >>> LogicalDeviceConfiguration(memory_limit="4100031B").limit_on(2**34)
    4100031
    >>> LogicalDeviceConfiguration(memory_limit="25%", growth=True).limit_on(2**34)
    4294967296
    """

    memory_limit: float | str | None = None
    experimental_priority: int | None = None
    experimental_device_ordinal: int | None = None
    growth: bool | None = field(default=None, kw_only=True)
    spill_to: _Several[str | os.PathLike[str]] | None = field(
        default=None, kw_only=True
    )
    spill_limit: _Several[float | str | None] = field(default=None, kw_only=True)
    lane_bandwidth: _Several[float | str | None] = field(default=None, kw_only=True)
    lane_timeout: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        for name in ("spill_to", "spill_limit", "lane_bandwidth"):
            if isinstance(getattr(self, name), list):  # make it hashable
                object.__setattr__(self, name, tuple(getattr(self, name)))
        self.limit_on(MAX_BYTES)
        self.spill_on(MAX_BYTES)
        if self.experimental_priority is not None:
            count(self.experimental_priority, "experimental_priority", None)
        if self.experimental_device_ordinal is not None:
            count(self.experimental_device_ordinal, "experimental_device_ordinal", 0)
        if not isinstance(self.growth, bool | None):
            raise TypeError(f"growth is True, False or None, not {self.growth!r}")

    def limit_on(self, total_bytes: int) -> int | None:
        """Return the memory limit on given hardware in bytes; None is no limit.

        Parameters
        ----------
        total_bytes : int
            The hardware's memory in bytes; only a percentage depends on it.

        Raises
        ------
        ValueError
            If it is a percentage that comes to less than a byte.
        """
        return _from_mib(self.memory_limit, total_bytes, "memory_limit")

    def spill_on(self, total_bytes: int) -> Spill:
        """Return the tiers of the device for swapped tensors.

        Parameters
        ----------
        total_bytes : int
            As for `limit_on`.

        Raises
        ------
        ValueError
            If the limit is a percentage that comes to less than a byte.
        """
        timeout = self._timeout()
        if self.spill_to is None:
            for name in ("spill_limit", "lane_bandwidth", "lane_timeout"):
                if getattr(self, name) is not None:
                    raise ValueError(
                        f"{name} applies to where tensors spill to: give "
                        "spill_to='host' or a folder, too"
                    )
            return Spill()
        given = _several(self.spill_to)
        if not given:
            raise ValueError("spill_to is empty: give 'host', or a folder")
        folders = [_folder(each) for each in given]
        for number, folder in enumerate(folders):
            if folder in folders[:number]:
                raise ValueError(f"spill_to names {given[number]!r} twice")
        count = len(folders)
        limits = [
            _from_mib(each, total_bytes, "spill_limit")
            for each in self._by_place("spill_limit", count)
        ]
        bandwidths = [
            _from_mib(each, None, "lane_bandwidth")
            for each in self._by_place("lane_bandwidth", count)
        ]
        named = zip(_tiers_of(folders), folders, limits, bandwidths, strict=True)
        return Spill(tuple(itertools.starmap(SpillPlace, named)), timeout)

    def _timeout(self) -> float:
        given: Any = self.lane_timeout
        if given is None:
            return LANE_TIMEOUT
        if isinstance(given, bool) or not isinstance(given, Real):
            raise TypeError(f"lane_timeout is a number of seconds, not {given!r}")
        seconds: Any = given  # such as a fraction
        if not seconds > 0:  # nor is NaN
            raise ValueError(f"lane_timeout must be positive, not {given}")
        return float(seconds) if seconds < _ENDLESS else math.inf

    def _by_place(self, name: str, count: int) -> Sequence[float | str | None]:
        """Return the value of a field for each of `count` tiers."""
        given = getattr(self, name)
        if given is None:
            return [None] * count
        result: Sequence[float | str | None] = _several(given)
        if len(result) != count:
            given = f"{len(result)} value{'s' * (len(result) != 1)}"
            raise ValueError(
                f"{name} has {given}, but spill_to has {count}: give one for each "
                "place, or None"
            )
        return result


def _several(given: Any) -> Sequence[Any]:
    """Return a tuple or list unchanged, and wrap any other value in a tuple."""
    return given if isinstance(given, tuple | list) else (given,)


def _folder(given: object) -> str | None:
    """Return the folder of a tier; None for host memory."""
    try:
        target = os.fspath(given)  # type: ignore[call-overload]
    except TypeError:
        target = None
    if not isinstance(target, str):
        raise TypeError(f"spill_to is 'host', a folder's path or None, not {given!r}")
    if not target:
        raise ValueError("spill_to is empty: give 'host', or a folder")
    return None if target == "host" else os.path.abspath(target)


def _tiers_of(folders: Sequence[str | None]) -> list[str]:
    """Return the names of tiers; files are numbered from the second on."""
    result: list[str] = []
    files = 0
    for folder in folders:
        files += folder is not None
        number = files if files > 1 else ""
        result.append("host" if folder is None else f"file{number}")
    return result


def _from_mib(
    limit: float | str | None, total_bytes: int | None, name: str
) -> int | None:
    """Return a limit, of which a number is MiB, in bytes; None is no limit."""
    if limit is None or isinstance(limit, str):
        return limit_from_bytes(limit, total_bytes=total_bytes, name=name)
    number: object = limit
    if isinstance(number, bool) or not isinstance(number, Real):
        raise TypeError(
            f"{name} is a number of MiB, a string like '4100031B' or None, "
            f"not {limit!r}"
        )
    exact = exact_value(number)
    if exact is None:
        raise ValueError(f"{name} must be finite, not {limit!r}")
    nbytes = exact * _MIB
    if nbytes.denominator != 1:
        raise ValueError(
            f"{name}={limit!r} MiB is not a whole number of bytes; write the "
            "limit as a string, such as '4100031B'"
        )
    return _positive(nbytes.numerator, limit, name)


def limit_from_bytes(
    limit: int | str | None,
    *,
    total_bytes: int | None,  # 100 % of percentages; None refuses these
    name: str = "memory_limit",
    stacklevel: int | None = None,  # relative to the caller; None for no warning
) -> int | None:
    """Return a limit, of which a number is bytes, in bytes; None is no limit."""
    if limit is None:
        return None
    if hasattr(limit, "__index__") and not isinstance(limit, bool):
        nbytes = _positive(index(limit), limit, name)  # NumPy's integers too
        if stacklevel is not None:
            warn_of_few_bytes(nbytes, f"{name}={nbytes}", stacklevel=stacklevel + 1)
        return nbytes
    try:
        nbytes = parse_bytes(limit, total_bytes=total_bytes)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from None
    return _positive(nbytes, limit, name)


def exact_value(number: Real) -> Fraction | None:
    """Return a number without rounding; None if it is not finite."""
    if isinstance(number, Rational):  # in Python's own integers, which do not overflow
        return Fraction(int(number.numerator), int(number.denominator))
    return Fraction(float(number)) if math.isfinite(number) else None


def _positive(nbytes: int, limit: object, name: str) -> int:
    if nbytes <= 0:
        raise ValueError(f"{name} must be positive, not {limit!r}")
    if nbytes > MAX_BYTES:
        raise ValueError(f"{name}={limit!r} is beyond the address space")
    return nbytes


class DeviceName(NamedTuple):
    """A parsed name of a device."""

    device_type: str  # in capital letters
    number: int | None  # None: the only device of the type
    physical: bool = False  # whether it names a physical device


def require_type(device_type: str) -> str:
    """Return a valid type of devices; TypeError or ValueError for others."""
    if not isinstance(device_type, str):
        raise TypeError(f"a device type is a word like 'GPU', not {device_type!r}")
    if not _TYPE.fullmatch(device_type):
        raise ValueError(f"a device type is a word like 'GPU', not {device_type!r}")
    return device_type


def device_type_of(device: object) -> str:
    """Return the type of a device or of its name; TypeError if it is neither."""
    if isinstance(device, str):
        return parse_name(device).device_type
    if isinstance(device, LogicalDevice | PhysicalDevice):
        return device.device_type
    raise TypeError(f"expected a device or its name, got {device!r}")


def spelling(name: str) -> str:
    """Return our name for another library's name of a device; empty if unknown."""
    match = _OTHERS.fullmatch(name)
    return f"'/GPU:{match[1] or 0}'" if match else ""


def parse_name(name: str) -> DeviceName:
    """Parse a device's name, such as ``"GPU:0"``, ``"/gpu:0"``, ``"/device:GPU:0"``."""
    match = _NAME.fullmatch(name)
    if match is None:
        right = spelling(name) or "it like 'CPU:0'"
        raise ValueError(f"Failed parsing device name {name!r}; write {right}")
    for part, here in _THIS_PROCESS.items():
        if match[part] not in (None, here):
            raise ValueError(
                f"No matching devices found for {name!r}: the devices are those of "
                "this process, /job:localhost/replica:0/task:0"
            )
    number = None if match["index"] is None else int(match["index"])
    kind = (match["alone"] or match["type"]).upper()
    return DeviceName(kind, number, physical=match["physical"] is not None)
