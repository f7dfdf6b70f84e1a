"""DistributedDataParallel around a budgeted model."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from memcfg._caller import outside
from memcfg.torch.ranks._agreement import Agreement
from memcfg.torch.ranks._around import Beside, Wrapper
from memcfg.torch.trace._overhead import gradient_bytes
from memcfg.torch.trace._traced import nbytes_of, rounded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

BUCKETS = "buckets of DDP"
_BROADCAST = 250 * 2**20  # bytes of buffers that DDP sends at a time


def active_data_parallel() -> DistributedDataParallel | None:
    """Return the DistributedDataParallel whose forward runs, or None."""
    if not distributed.is_available():
        return None
    active = DistributedDataParallel._get_active_ddp_module()
    return active if isinstance(active, DistributedDataParallel) else None


class DataParallel(Wrapper):
    """A DistributedDataParallel around a model, or around a model that has it.

    Its buckets live as long as it does. They count as the sum of the gradients, each
    rounded up, which is at most 63 bytes a parameter too much. What gloo or NCCL
    allocate themselves is beside the budget.

    Parameters
    ----------
    module : torch.nn.Module
        The model.
    around : torch.nn.parallel.DistributedDataParallel
        The wrapper.

    Raises
    ------
    ValueError
        If it keeps copies of parameters in another dtype.
    """

    is_on_ranks = True

    def __init__(self, module: nn.Module, around: DistributedDataParallel) -> None:
        super().__init__(module)
        if around.mixed_precision is not None:
            raise ValueError(
                "DDP(mixed_precision=...) keeps copies of parameters, which no budget "
                "counts: leave it out, and run forward under torch.autocast"
            )
        self._around = around

    def _reduced(self) -> Iterator[nn.Parameter]:
        """Iterate over the parameters whose gradients it reduces."""
        ignored = {
            id(each)
            for name, each in self._around.module.named_parameters()
            if name in self._around.parameters_to_ignore
        }
        for each in self.module.parameters():
            if each.requires_grad and id(each) not in ignored:
                yield each

    @property
    def beside(self) -> Beside:
        """The bytes that the wrapper holds."""
        around = self._around
        buckets = sum(rounded(each.nbytes, each.device) for each in self._reduced())
        passing = 0
        if around.broadcast_buffers:
            sent = sum(map(nbytes_of, self.module.buffers()))
            passing = min(sent, 2 * _BROADCAST)
        return Beside(
            ((BUCKETS, buckets),),
            passing,
            # gradients are views of the buckets once they are reduced
            frees_gradients=around.gradient_as_bucket_view,
            copies_outputs=around.find_unused_parameters or around.static_graph,
        )

    @property
    def gradient_bytes(self) -> int:
        """The bytes of gradients that exist, without those that `beside` counts."""
        if not self._around.gradient_as_bucket_view:
            return gradient_bytes(self.module)
        views = {id(each) for each in self._reduced()}
        return gradient_bytes(self.module, without=views)

    @property
    def agreement(self) -> Agreement | None:
        """A new agreement of the ranks on a step; None if they need not agree.

        Ranks agree where DDP has them meet, too: not without gradients, in `no_sync`,
        or under `Join`, where a rank may have no batch left.
        """
        around = self._around
        meets = torch.is_grad_enabled() and around.require_backward_grad_sync
        if not meets or around.module is not self.module or around._join_config.enable:
            return None
        return Agreement((around.process_group,), around.device)

    def refused(self) -> None:
        """Have DDP as after a step that this rank alone has refused.

        DDP sends no buffers before the pass that follows one without a reduction, so
        this rank must not wait for those of the ranks that have run that one.
        """
        around = self._around
        if not (torch.is_grad_enabled() and around.require_backward_grad_sync):
            around.require_forward_param_sync = False

    def warn_of_hooks(self) -> None:
        """Warn of a communication hook, whose tensors are not counted."""
        if self._around._comm_hooks:
            warnings.warn(
                "DDP has a communication hook: the tensors that it makes are beside "
                "the budget",
                RuntimeWarning,
                stacklevel=outside("torch"),
            )
