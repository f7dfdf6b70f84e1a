"""Facts about each method: how it saves memory, its unit of choice, its source.

A method of `memcfg.plan.NAMED_POLICIES` has a row here.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from memcfg.plan import NAMED_POLICIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

TECHNIQUES = ("share", "recompute", "swap", "compress", "algorithms")
SCOPES = ("op", "layer", "segment", "tensor", "graph")

_SIGNS = "mask"  # a lossy codec that methods use where only signs are read


class Facts(NamedTuple):
    """The facts of a method as implemented here."""

    technique: tuple[str, ...]  # of TECHNIQUES, the first one first; empty: none
    scope: str  # of SCOPES: the unit that it decides about
    source: str  # the paper; memcfg for methods of this library
    times: bool = True  # whether its plan depends on the times of ops
    dynamic: bool = False  # whether measured steps change its plan

    @property
    def swaps(self) -> bool:
        """Whether tensors may leave the device, so that its bandwidths matter."""
        return "swap" in self.technique


_RECOMPUTE, _SWAP, _SHARE = ("recompute",), ("swap",), ("share",)
_PICKS = ("algorithms",)
_OWN = "memcfg"
_EVERY = Facts(("recompute", "swap", "compress", "algorithms"), "graph", _OWN)
_ALLOCATED = Facts(("recompute", "algorithms"), "op", _OWN)
_GIST = Facts(("compress",), "tensor", "Jain et al. 2018", times=False)
_BETWEEN = Facts(_RECOMPUTE, "segment", "Wang et al. 2018")
_VDNN = Facts(("swap", "algorithms"), "layer", "Rhu et al. 2016")
_LOWER_SETS = Facts(_RECOMPUTE, "segment", "Kusumoto et al. 2019")
_IN_TIME = Facts(_RECOMPUTE, "segment", "Gruslys et al. 2016")
_SEGMENTS = Facts(_RECOMPUTE, "segment", "Chen et al. 2016")

FACTS: Mapping[str, Facts] = MappingProxyType(
    {
        "auto": _EVERY,
        "keep_all": Facts((), "tensor", _OWN, times=False),
        "share": Facts(_SHARE, "tensor", _OWN, times=False),
        "replay_elementwise": Facts(_RECOMPUTE, "op", _OWN),
        "sqrt_checkpoint": Facts(_RECOMPUTE, "segment", _OWN),
        "look_ahead": Facts(_RECOMPUTE, "tensor", _OWN),
        "repeated_blocks": Facts(_RECOMPUTE, "segment", _OWN),
        "out_of_core": Facts(("swap", "recompute", "algorithms"), "tensor", _OWN),
        "auto_algorithms": _EVERY,
        "mxnet": Facts(_SHARE, "tensor", "Chen et al. 2015", times=False),
        "layrub": Facts(_SHARE, "layer", "Jin et al. 2018", times=False),
        "chen_sqrt": _SEGMENTS,
        "chen_mirror": _SEGMENTS._replace(scope="op"),
        "chen_budget": _SEGMENTS,
        "chen_recursive": _SEGMENTS,
        "revolve": _SEGMENTS._replace(source="Griewank, Walther 2000"),
        "rotor": Facts(_RECOMPUTE, "segment", "Beaumont et al. 2019"),
        "bptt_hidden": _IN_TIME,
        "bptt_internal": _IN_TIME,
        "bptt_mixed": _IN_TIME,
        "superneurons_speed": _BETWEEN,
        "superneurons_memory": _BETWEEN._replace(scope="layer"),
        "superneurons_cost": _BETWEEN,
        "vdnn_all": _VDNN,
        "vdnn_conv": _VDNN,
        "vdnn_dyn": _VDNN,
        "meng_swap": Facts(_SWAP, "tensor", "Meng et al. 2017"),
        "gist": _GIST,
        "gist_fp16": _GIST,
        "gist_fp10": _GIST,
        "gist_fp8": _GIST,
        "actnn": _GIST._replace(source="J. Chen et al. 2021"),
        "cdma": Facts(("swap", "compress"), "layer", "Rhu et al. 2018"),
        "vdnn_pp": Facts(_SWAP, "layer", "Shriram et al. 2019"),
        "layrub_migration": Facts(_SWAP, "tensor", "Jin et al. 2018"),
        "superneurons": Facts(("swap", "recompute"), "layer", "Wang et al. 2018"),
        "superneurons_cache": Facts(_SWAP, "tensor", "Wang et al. 2018"),
        "meng_attention": Facts(_RECOMPUTE, "op", "Meng et al. 2017"),
        "capuchin": Facts(
            ("swap", "recompute"), "tensor", "Peng et al. 2020", dynamic=True
        ),
        "modnn": Facts(("swap", "algorithms"), "tensor", "X. Chen et al. 2018"),
        "workspace_performance": Facts(_PICKS, "op", "Rhu et al. 2016"),
        "workspace_memory": Facts(_PICKS, "op", "Rhu et al. 2016"),
        "workspace_dynamic": Facts(_PICKS, "op", "Wang et al. 2018"),
        "workspace_priority": Facts(_PICKS, "op", _OWN),
        "workspace_balanced": Facts(_PICKS, "op", _OWN),
        "ucudnn_wr": Facts(_PICKS, "op", "Oyama et al. 2018"),
        "ucudnn_wd": Facts(_PICKS, "op", "Oyama et al. 2018"),
        "by_need": _ALLOCATED,
        "by_priority": _ALLOCATED,
        "balanced": _ALLOCATED,
        "kusumoto_exact_time": _LOWER_SETS,
        "kusumoto_exact_memory": _LOWER_SETS,
        "kusumoto_pruned_time": _LOWER_SETS,
        "kusumoto_pruned_memory": _LOWER_SETS,
        "checkmate": Facts(_RECOMPUTE, "op", "Jain et al. 2020"),
        "checkmate_lp": Facts(_RECOMPUTE, "op", "Jain et al. 2020"),
        "retention_intervals": Facts(_RECOMPUTE, "tensor", "Bartan et al. 2023"),
        "exact": Facts(_RECOMPUTE, "op", _OWN),
    }
)
"""The facts of each method, by name."""


def is_lossless(method: str) -> bool:
    """Return whether training has the same bits under a method's codecs."""
    return bool(getattr(NAMED_POLICIES[method](), "lossless", True))


def describe_lossy(codecs: Mapping[str, Iterable[str]]) -> str:
    """Say which methods are not lossless, and the codecs of their plans."""
    methods = [
        f"{method} ({', '.join(names)})" if (names := rounding(lossy)) else method
        for method, lossy in codecs.items()
        if rounding(lossy) or not is_lossless(method)
    ]
    return (
        f"Not lossless (weights differ from those of share): {', '.join(methods)}"
        if methods
        else ""
    )


def rounding(lossy: Iterable[str]) -> tuple[str, ...]:
    """Return the lossy codecs of a plan that change values that ops read."""
    return tuple(sorted({*lossy} - {_SIGNS}))
