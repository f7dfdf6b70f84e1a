"""FSDP2 (`fully_shard`) around a budgeted model."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed
from torch.multiprocessing.reductions import StorageWeakRef

from memcfg.torch.ranks._agreement import Agreement
from memcfg.torch.ranks._around import Beside, Wrapper
from memcfg.torch.trace._traced import nbytes_of, rounded

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import nn

SHARDS, GRADIENT_SHARDS = "shards of FSDP", "gradient shards of FSDP"
_TIMEOUT = 1.0  # seconds; the thread has returned, and only drops references
_HOOKS = "_forward_pre_hooks", "_forward_hooks"


def _state_of(module: nn.Module) -> Any:
    """Return the FSDP state of a module; None if it is not sharded itself."""
    from torch.distributed.fsdp import FSDPModule

    return module._get_fsdp_state() if isinstance(module, FSDPModule) else None


def is_sharded(module: nn.Module) -> bool:
    """Return whether FSDP2 shards a module or a part of it."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return False
    return any("_is_fsdp_managed_module" in vars(each) for each in module.modules())


class FullySharded(Wrapper):
    """FSDP2 around a model.

    FSDP's hooks around the model gather its parameters before the planned call. Those
    of modules inside would split the step; their parameters are gathered with it, and
    stay until backward ends, as with ``reshard_after_forward=False``. Gradients are
    scattered, and parameters freed, when backward has ended.

    Parameters
    ----------
    module : torch.nn.Module
        The model.

    Raises
    ------
    ValueError
        If parts of the model are sharded and it is not, if modules inside have a
        precision of their own, or if parameters are offloaded.
    """

    is_on_ranks = True

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._state = _state_of(module)
        name = type(module).__name__
        if self._state is None:
            raise ValueError(
                f"parts of the {name} are sharded and it is not: call fully_shard on "
                "the whole model, too"
            )
        self._inner = {
            each: state
            for each in module.modules()
            if each is not module and (state := _state_of(each)) is not None
        }
        for each, state in self._inner.items():
            policy = state._mp_policy
            if policy.param_dtype is not None or policy.output_dtype is not None:
                raise ValueError(
                    f"the {type(each).__name__} in the {name} has an mp_policy, which "
                    "a budget of the whole model cannot keep: leave it out, and run "
                    "forward under torch.autocast"
                )
        if any(each.offload_to_cpu for each in self._shards()):
            raise ValueError(
                "FSDP's CPUOffloadPolicy keeps parameters where no budget counts them: "
                "leave it out, or take the budget off"
            )

    def _groups(self) -> list[Any]:
        """Return the groups of parameters that FSDP gathers together."""
        states = {id(each): each for each in (self._state, *self._inner.values())}
        return [
            group for state in states.values() for group in state._fsdp_param_groups
        ]

    def _shards(self) -> list[Any]:
        """Return the parameters as FSDP knows them."""
        return [each for group in self._groups() for each in group.fsdp_params]

    @property
    def beside(self) -> Beside:
        """The bytes that the wrapper holds."""
        shards = gradients = flat = whole = 0
        for each in self._shards():
            local = nbytes_of(each._sharded_param_data)
            shards += local
            gradients += local if each.sharded_param.requires_grad else 0
            nbytes = each._orig_size.numel() * each._sharded_param_data.itemsize
            whole += rounded(nbytes, each.device)
        for group in self._groups():
            size = group.mesh_info.shard_mesh_size
            total = sum(
                nbytes_of(each._sharded_param_data) for each in group.fsdp_params
            )
            flat = max(flat, size * total)
        kept = any(not each.reshard_after_backward for each in self._groups())
        return Beside(
            (
                (SHARDS, shards),
                (GRADIENT_SHARDS, gradients + (flat if kept else 0)),
            ),
            2 * flat,  # gloo gathers into another one
            0 if kept else whole,
            frees_gradients=all(each.reduce_grads for each in self._groups()),
        )

    @property
    def _sharded_gradients(self) -> list[torch.Tensor]:
        """The gradients of the shards, to which a step adds."""
        known = (each.sharded_param.grad for each in self._shards())
        return [each._local_tensor for each in known if each is not None]

    @property
    def has_gradients(self) -> bool:
        """Whether there are gradients to which a step adds."""
        return bool(self._sharded_gradients) or super().has_gradients

    @property
    def gradient_bytes(self) -> int:
        """The bytes of gradients that exist, without those that `beside` counts."""
        storages = {e.untyped_storage()._cdata: e for e in self._sharded_gradients}
        return super().gradient_bytes + sum(map(nbytes_of, storages.values()))

    @property
    def agreement(self) -> Agreement | None:
        """A new agreement of the ranks on a step; None if they need not agree."""
        if not torch.is_grad_enabled() or not self._state._is_root:
            return None
        mesh = self._groups()[0].mesh_info.mesh
        groups = [mesh.get_group(each) for each in range(mesh.ndim)]
        return Agreement(groups, self._groups()[0].device)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Gather the parameters of all modules, and hide FSDP's hooks from traces."""
        self._free_gathered()
        try:
            self._gather(self._inner.values())
            with self._hidden():
                yield
        except Exception:
            if self._state._is_root:
                self.module.reset_iter_state()
            raise
        if not torch.is_grad_enabled():
            for each in self._inner:
                each.reshard()

    def _free_gathered(self) -> None:
        """Free what was gathered, and copied since; FSDP frees it after forward."""
        context = self._state._comm_ctx
        gathered = context.all_gather_state
        if gathered is not None:
            context.all_gather_copy_in_stream.wait_event(gathered.event)
            context.all_gather_stream.wait_event(gathered.event)
            buffer = StorageWeakRef(gathered[0].all_gather_output.untyped_storage())
            context.all_gather_state = gathered = None
            _wait_for_release(buffer)

    @contextmanager
    def _hidden(self) -> Iterator[None]:
        """Hide FSDP's hooks of the modules inside."""
        before = [
            (each, name, vars(each)[name]) for each in self._inner for name in _HOOKS
        ]
        try:
            for module, name, hooks in before:
                left = {key: hook for key, hook in hooks.items() if not _is_fsdps(hook)}
                vars(module)[name] = type(hooks)(left)
            yield
        finally:
            for module, name, hooks in before:
                vars(module)[name] = hooks

    @contextmanager
    def planning(self) -> Iterator[None]:
        """Gather all parameters for a trace outside of FSDP's hooks, on all ranks."""
        self._gather((self._state, *self._inner.values()))
        try:
            with self._hidden():
                yield
        finally:
            for each in (self.module, *self._inner):
                each.reshard()

    def _gather(self, states: Iterable[Any]) -> None:
        """Gather the parameters of some states, as `FSDPModule.unshard` does."""
        for group in (each for state in states for each in state._fsdp_param_groups):
            group.lazy_init()
            group.unshard()
            gathered = group._all_gather_result
            if gathered is None:
                continue
            buffer = StorageWeakRef(gathered.all_gather_output.untyped_storage())
            gathered = None
            group.wait_for_unshard()
            _wait_for_release(buffer)


def _wait_for_release(buffer: StorageWeakRef) -> None:
    """Wait until the thread that gathered has released its buffer, too."""
    end = time.monotonic() + _TIMEOUT
    while not buffer.expired() and time.monotonic() < end:
        time.sleep(1e-5)


def _is_fsdps(hook: Any) -> bool:
    """Return whether a hook is FSDP's."""
    while hasattr(hook, "__wrapped__"):
        hook = hook.__wrapped__
    return str(getattr(hook, "__module__", "")).startswith("torch.distributed.fsdp")
