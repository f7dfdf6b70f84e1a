"""The policies by name, in the one place that lists them."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from memcfg.plan._auto import auto
from memcfg.plan._keep_all import keep_all
from memcfg.plan._share import share
from memcfg.plan._sqrt_checkpoint import sqrt_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from memcfg.plan._policy import Policy

__all__ = ["POLICIES"]

POLICIES: Mapping[str, Callable[[], Policy]] = MappingProxyType(
    {
        "auto": auto,
        "keep_all": keep_all,
        "share": share,
        "sqrt_checkpoint": sqrt_checkpoint,
    }
)
"""What makes the policy of each name; the first is the default."""
