"""One stage of a chain: a value that says what is done, and does nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from memcfg.plan.format._plan import Plan


@dataclass(frozen=True, repr=False)
class Stage:
    """A stage of `chain`, as `order`, `in_place`, `recompute` and `place` make it.

    Parameters
    ----------
    name : str
        The name of the function that makes it.
    policy : Policy or None, default None
        What decides which ops are computed again; only `recompute` has one.
    label : str, default ""
        How it prints the policy; does not take part in comparison.
    """

    name: str
    policy: Callable[..., Plan] | None = None
    label: str = field(default="", compare=False)

    def __repr__(self) -> str:
        return f"{self.name}({self.label})"
