"""What is around a budgeted model: nothing, or a wrapper that trains it on ranks."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memcfg.torch.trace._overhead import gradient_bytes

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from torch import nn

    from memcfg.torch.ranks._agreement import Agreement


@dataclass(frozen=True)
class Beside:
    """Bytes of a wrapper, beside what a step of the model itself has in use.

    Parameters
    ----------
    held : tuple of (str, int)
        Bytes that it holds during the whole step, by name.
    passing : int, default 0
        Bytes that it holds before forward begins, and frees.
    freed : int, default 0
        Bytes of the model's parameters that it has freed when the optimizer steps.
    frees_gradients : bool, default False
        Whether it has freed the gradients that the step made by then.
    copies_outputs : bool, default False
        Whether it returns copies of the model's outputs.
    """

    held: tuple[tuple[str, int], ...] = ()
    passing: int = 0
    freed: int = 0
    frees_gradients: bool = False
    copies_outputs: bool = False


class Wrapper:
    """Nothing is around the model.

    Parameters
    ----------
    module : torch.nn.Module
        The model.

    Attributes
    ----------
    is_on_ranks : bool
        Whether several ranks train the model.
    """

    is_on_ranks = False

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    @property
    def beside(self) -> Beside:
        """The bytes that the wrapper holds."""
        return Beside()

    @property
    def has_gradients(self) -> bool:
        """Whether there are gradients to which a step adds."""
        return any(each.grad is not None for each in self.module.parameters())

    @property
    def gradient_bytes(self) -> int:
        """The bytes of gradients that exist, without those that `beside` counts."""
        return gradient_bytes(self.module)

    @property
    def agreement(self) -> Agreement | None:
        """A new agreement of the ranks on a step; None if they need not agree."""
        return None

    def refused(self) -> None:
        """Have the wrapper as after a step that this rank alone has refused."""

    def running(self) -> AbstractContextManager[None]:
        """Return a context in which the model runs within the wrapper."""
        return nullcontext()

    def planning(self) -> AbstractContextManager[None]:
        """Return a context in which a step is planned outside of the wrapper."""
        return nullcontext()
