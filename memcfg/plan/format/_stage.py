"""Description of one stage of `chain`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from memcfg.plan.format._plan import Plan


@dataclass(frozen=True, repr=False)
class Stage:
    """A stage of `chain`, made by `order`, `in_place`, `recompute` or `place`.

    Parameters
    ----------
    name : str
        The name of the function that made the stage.
    policy : Policy or None, default None
        The policy that decides which ops are recomputed; only `recompute` has one.
    label : str, default ""
        The policy as text for ``repr``; ignored in comparisons.
    """

    name: str
    policy: Callable[..., Plan] | None = None
    label: str = field(default="", compare=False)

    def __repr__(self) -> str:
        return f"{self.name}({self.label})"
