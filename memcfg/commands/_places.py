"""Options that say where methods swap to."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from memcfg import config
from memcfg._core._machine import machine_bytes
from memcfg.commands._sizes import is_bare, warn_of_few
from memcfg.graph import NOMINAL_COPY, Tier

if TYPE_CHECKING:
    import argparse
    from typing import Never

_SETTING = re.compile(r"\b(?:spill_to|spill_limit|lane_bandwidth)\b")


def add_places(parser: argparse.ArgumentParser, first: str = "") -> None:
    """Add ``--spill-to``, ``--spill-limit`` and ``--lane-bandwidth`` to a parser.

    `first` describes the bandwidths of the first place, if these cannot be chosen.
    """
    default, several = "5GB to the host, 1GB to a folder", "once for each"
    if first:
        default = f"the first place has {first} and takes only none; other folders 1GB"
        several = f"{several}, none first"
    parser.add_argument(
        "--spill-to",
        action="append",
        metavar="WHERE",
        help=(
            "where methods swap to: host, or a folder (default: host); repeat it for "
            "slower places, which take what does not fit the places before"
        ),
    )
    parser.add_argument(
        "--spill-limit",
        action="append",
        metavar="SIZE",
        help=(
            "limit of the place, such as 4GiB, or none; with several places once for "
            "each"
        ),
    )
    parser.add_argument(
        "--lane-bandwidth",
        action="append",
        metavar="SIZE",
        help=(
            "bytes per second that a lane copies, such as 8GB, or none (default: "
            f"{default}); with several places {several}"
        ),
    )


def said_places(
    args: argparse.Namespace,
) -> config.LogicalDeviceConfiguration | None:
    """Return a device with these places, if any was given; errors name the options."""
    rates = args.lane_bandwidth
    if args.spill_to is None and args.spill_limit is None is rates:
        return None
    lanes = rates and [each.removesuffix("/s") for each in rates]
    try:
        return config.LogicalDeviceConfiguration(
            spill_to=args.spill_to or ["host"],
            spill_limit=_given(args.spill_limit, "--spill-limit"),
            lane_bandwidth=_given(lanes, "--lane-bandwidth"),
        )
    except (TypeError, ValueError) as error:
        refuse(args, error)


def configure(
    args: argparse.Namespace, devices: list[config.LogicalDeviceConfiguration]
) -> None:
    """Make a logical CPU; errors name the options."""
    (cpu,) = config.list_physical_devices("CPU")
    try:
        config.set_logical_device_configuration(cpu, devices)
    except (TypeError, ValueError) as error:
        refuse(args, error)


def refuse(args: argparse.Namespace, error: Exception) -> Never:
    """Exit with an error about the places."""
    parser: argparse.ArgumentParser = args.parser
    message = str(error).replace("place, or None", "place, even if it is none")
    parser.error(_SETTING.sub(_as_option, message))


def tiers_said(wanted: config.LogicalDeviceConfiguration) -> tuple[Tier, ...]:
    """Return the places of a device as graphs have them."""
    places = wanted.spill_on(machine_bytes()).places
    nominal = {place.tier: NOMINAL_COPY["file"] for place in places}
    nominal.update(NOMINAL_COPY)
    return tuple(
        Tier(
            place.tier,
            place.bandwidth or nominal[place.tier],
            place.limit_bytes,
            is_stated=True,
        )
        for place in places
    )


def _given(sizes: list[str] | None, option: str) -> list[str | None] | None:
    """Parse sizes of which some may be none; a number without a unit is bytes."""
    if sizes is None:
        return None
    result: list[str | None] = []
    for each in sizes:
        if is_bare(each) and int(each):
            warn_of_few(option, int(each))
        result.append(None if each == "none" else f"{each}B" * is_bare(each) or each)
    return result


def _as_option(setting: re.Match[str]) -> str:
    """Return the option that makes a setting of a device."""
    return "--" + setting[0].replace("_", "-")
