"""Predictions of what a step will need, without running the model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memcfg._checks import named_arguments
from memcfg._html import report_of_text
from memcfg.files import write_atomically
from memcfg.torch.budget._budgeted import forward_of
from memcfg.torch.budget._checked_arguments import (
    ALLOCATED,
    check_fits,
    checked_example,
)
from memcfg.torch.budget._planned_call import PlannedCall, planned_only, tracing
from memcfg.torch.budget._planner import (
    Overhead,
    Planner,
    Settings,
    Shared,
    floor_bytes,
)
from memcfg.torch.budget._room import HELD, STATE, WORKSPACES
from memcfg.torch.budget._step_report import by_module, by_role, table_of
from memcfg.torch.estimate._eager import MeasuredCalls, eager_bytes
from memcfg.torch.trace._costs import MeasuredCosts
from memcfg.torch.trace._overhead import (
    gradient_bytes,
    optimizer_bytes,
    update_bytes,
)
from memcfg.units import format_bytes

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    import torch
    from torch import nn

    from memcfg.torch.budget._step import Step


@dataclass(frozen=True)
class Estimate:
    """The predicted memory of a training step; printing it gives tables.

    Parameters
    ----------
    peak_bytes : int
        The most bytes in use at a time in a step of `budget` without a limit.
    eager_bytes : int or None
        The most bytes in a step of PyTorch without memcfg, which frees in another
        order, and works in place where the module or autograd does. None if unknown.
    floor_bytes : int
        The smallest limit that `budget` can keep. With an `nn.LSTM` on a CPU, the
        smallest that reproduces the bits of eager mode.
    by_role : mapping of str to int
        Bytes at that time: parameters, gradients, activations, scratch and so on.
    by_module : mapping of str to int
        Bytes of the graph at that time, by the path of the module that owns them.
    """

    peak_bytes: int
    eager_bytes: int | None
    floor_bytes: int
    by_role: Mapping[str, int]
    by_module: Mapping[str, int]

    def __str__(self) -> str:
        eager = ""
        if self.eager_bytes is not None:
            eager = f"{format_bytes(self.eager_bytes)} in PyTorch, "
        return "\n".join(
            (
                f"Peak of a step: {eager}{format_bytes(self.peak_bytes)} planned "
                "without a limit",
                f"Smallest limit: {format_bytes(self.floor_bytes)}",
                table_of("role", self.by_role),
                table_of("module", self.by_module),
            )
        )

    def _repr_html_(self) -> str:
        """Return the same for notebooks."""
        return report_of_text(str(self))


@named_arguments
def estimate(
    model: nn.Module,
    example: Sequence[Any] = (),
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    loss: Callable[[Any], torch.Tensor] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    times: str = "measured",
) -> Estimate:
    """Predict the memory of a training step without running it.

    The step is traced with fake tensors, and the model's Python code runs on them once
    more, as in eager mode. Each distinct op is run once, by itself, to measure its
    scratch, unless `times` is ``"nominal"``.

    Parameters
    ----------
    model : torch.nn.Module
        The model, which `torch.compile` must trace as one graph.
    example : sequence, default ()
        Its inputs, positional.
    example_kwargs : mapping or None, default None
        Its inputs by name, in addition to those.
    loss : callable or None, default None
        Computes a scalar from the model's output, as your own loss does. It is traced
        and never run. None counts three times the bytes of the outputs for your loss.
    optimizer : torch.optim.Optimizer or None, default None
        Its state is counted, as it will be after a step, and so are the temporary
        tensors of its step.
    times : str, default "measured"
        ``"nominal"``: nothing is run, and no scratch is known.

    Returns
    -------
    Estimate
        The prediction.

    Raises
    ------
    TypeError
        If the example is not a sequence of inputs, `example_kwargs` is not a mapping,
        the model does not take these inputs, or `optimizer` is not one of PyTorch's.
    ValueError
        If `times` is unknown; if the model does not run on the example, or has lazy
        layers without shapes or sparse tensors; if it or the loss cannot be traced; or
        if the optimizer has none of the model's parameters, or its state cannot be
        determined.

    Examples
    --------
    >>> import memcfg.torch as mt, torch
    >>> model = torch.nn.Linear(8, 4)
    >>> estimate = mt.estimate(model, (torch.ones(2, 8),), times="nominal")
    >>> estimate.peak_bytes >= estimate.floor_bytes > 0
    True
    """
    inputs = checked_example(example, example_kwargs)
    check_fits(model, inputs, optimizer, loss)
    planner, step = traced_step(None, model, inputs, times, optimizer, loss)
    costs = planner.shared.costs
    eager = eager_bytes(
        model,
        loss,
        *inputs,
        state_bytes=sum(step.overhead.get(e, 0) for e in (STATE, WORKSPACES, HELD)),
        update_bytes=update_bytes(optimizer),
        measure=MeasuredCalls(costs) if isinstance(costs, MeasuredCosts) else None,
    )
    return Estimate(
        step.peak_bytes,
        eager,
        floor_bytes(step, ALLOCATED),
        by_role(step),
        by_module(step),
    )


@named_arguments
def export(
    model: nn.Module,
    example: Sequence[Any],
    path: str | os.PathLike[str],
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    loss: Callable[[Any], torch.Tensor] | None = None,
    times: str = "measured",
) -> None:
    """Write the graph of a training step as ``memcfg.graph/1``.

    Parameters
    ----------
    model : torch.nn.Module
        The model, which `torch.compile` must trace as one graph.
    example : sequence
        Its inputs, positional.
    path : str or path-like
        The file, which is replaced.
    example_kwargs : mapping or None, default None
        Its inputs by name, in addition to those.
    loss : callable or None, default None
        Computes a scalar from the model's output. None gives the step an op without
        cost instead.
    times : str, default "measured"
        ``"nominal"``: nothing is run, and no scratch is known.

    Raises
    ------
    OSError
        If the file can't be written.
    TypeError
        If the example is not a sequence of inputs, `example_kwargs` is not a mapping,
        or the model does not take these inputs.
    ValueError
        If `times` is unknown, or the model does not run on the example or cannot be
        traced.
    """
    inputs = checked_example(example, example_kwargs)
    check_fits(model, inputs, loss=loss)
    _, step = traced_step(loss, model, inputs, times)
    write_atomically(Path(path), (step.traced.graph.to_json().encode(),))


def traced_step(
    computed: Callable[[Any], torch.Tensor] | None,
    model: nn.Module,
    inputs: tuple[Sequence[Any], Mapping[str, Any]],
    times: str,
    optimizer: torch.optim.Optimizer | None = None,
    loss: Callable[[Any], torch.Tensor] | None = None,
) -> tuple[Planner, Step]:
    """Trace a model, and plan a step of it without a limit.

    `computed` computes what is traced from the model's output; None stands for itself.
    `loss` is the user's own, whose bytes are counted.
    """
    forward = forward_of(model)

    def run(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        made = forward(module, *args, **kwargs)
        return made if computed is None else computed(made)

    settings = Settings(None, ALLOCATED, times)
    overhead = Overhead(
        optimizer_bytes(optimizer),
        gradient_bytes(model),
        update_bytes=update_bytes(optimizer),
    )
    planner = Planner(settings, Shared.of(settings), overhead, loss=loss)
    with tracing(is_recurrent=True):
        planned_only(PlannedCall(run, planner, model, only_plan=True), *inputs)
    return planner, planner.steps[-1]
