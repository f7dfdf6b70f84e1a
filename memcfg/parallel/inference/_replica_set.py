"""The replicas of a model on the devices of its kind, and the batches that they fit."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from memcfg import config
from memcfg.errors import InfeasiblePlanError
from memcfg.nn import Model
from memcfg.nn.training._tracing import trace_layers
from memcfg.parallel.inference._batch_sizes import BatchSizes
from memcfg.parallel.inference._replica import Replica

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.devices import Device

__all__ = ["ReplicaSet"]

_UNLIMITED_BATCH = 32  # samples, where no limit says how large a batch may be


class ReplicaSet:
    """Replicas of one model, the first of which is the model itself.

    All programs are loaded when the set is made, so that a replica which does not fit
    is an error then. Replicas on one device have equal shares of what its limit leaves.
    """

    def __init__(
        self,
        model: Model,
        workers: int | None,
        batch_limit: int | None,
        *,
        waiting: int,
        merges: bool,
    ) -> None:
        _check_model(model, merges=merges, limited=batch_limit is not None)
        self._batch_limit = batch_limit
        self._waiting = waiting  # requests that may wait
        self._merges = merges
        devices = _devices(model, workers)
        self._sharing = Counter(devices)  # replicas by device
        self.replicas = [Replica(model, devices[0])]
        had_none = _is_planned(model) and not model._built_session().executor.nbytes
        try:
            for device in devices[1:]:
                self.replicas.append(Replica(model._replica(device), device))
            self._load()
        except BaseException:
            self.close()
            if had_none:
                model.close()
            raise

    def close(self, keeps: Model | None = None) -> None:
        """Free the copies' memory, and the model's unless it is the one to keep."""
        for each in self.replicas:
            own = each is self.replicas[0]
            if not own or (keeps is not None and each.model is not keeps):
                each.model.close()

    def _load(self) -> None:
        """Choose the sizes of batches and load their programs."""
        model = self.replicas[0].model
        planned = _is_planned(model)
        is_open = planned and model._built_session().is_open
        for number, replica in enumerate(self.replicas):
            fixed = None

            def sizes_of(shapes: Any, replica: Replica = replica) -> BatchSizes:
                return self._sizes(replica, [shape for shape, _ in shapes])

            try:
                if not is_open:
                    fixed = self._sizes(replica, None)
                replica.use_sizes(fixed, sizes_of)
                if fixed is not None and planned:
                    least = self._waiting if self._merges else 1
                    self._load_programs(number, fixed.up_to(least))
            except InfeasiblePlanError as error:
                raise self._refused(error, number) from error

    def _load_programs(self, number: int, sizes: Sequence[int]) -> None:
        """Load the programs of a replica, beside the shares of those after it."""
        promised = self._promised(number)
        if promised:
            with suppress(InfeasiblePlanError):  # then one after it does not fit
                self.replicas[number].load(sizes, promised)
                return
        self.replicas[number].load(sizes, 0)

    def _promised(self, number: int) -> int:
        """Return the bytes of its device that a replica leaves to those after it."""
        own = self.replicas[number].device
        later = sum(each.device == own for each in self.replicas[number + 1 :])
        share = self._share(own)
        return 0 if share is None else later * share

    def _share(self, device: str) -> int | None:
        """Return the bytes of a device for each of its replicas; None: no limit."""
        pool = config.logical_device(device).pool
        if pool.limit is None:
            return None
        own = sum(
            each.model._built_session().executor.nbytes
            for each in self.replicas
            if each.device == device and _is_planned(each.model)
        )
        others = pool.stats().current_bytes - own - pool.holders.spare_bytes
        return max(pool.limit - max(others, 0), 0) // self._sharing[device]

    def _sizes(self, replica: Replica, shapes: Sequence[Any] | None) -> BatchSizes:
        """Return the sizes of a replica's batches, for samples of some shapes."""
        if self._batch_limit is not None:
            return BatchSizes(self._batch_limit, rounds=self._merges)
        model, share = replica.model, self._share(replica.device)
        if share is None or not _is_planned(model):
            return BatchSizes(_UNLIMITED_BATCH, rounds=self._merges)
        network = model._built_network()
        lengths = None if shapes is None else network.lengths_of(shapes)
        alone = self._sharing[replica.device] == 1
        largest = model.largest_batch(
            None if alone else share, program="predict", lengths=lengths
        )
        return BatchSizes(max(largest, 1), rounds=self._merges)

    def _refused(self, error: InfeasiblePlanError, number: int) -> InfeasiblePlanError:
        """Return the error of a replica that does not fit, with what would."""
        count = len(self.replicas)
        if number == 0 or count == 1:
            return error
        return error.with_hint(
            f"{number} of {count} workers would fit: pass workers={number}."
        )


def _check_model(model: Any, *, merges: bool, limited: bool) -> None:
    """Refuse what cannot answer requests, in words."""
    if not isinstance(model, Model):
        raise TypeError(f"model is a memcfg.nn.Model, not {type(model).__name__}")
    network = model._built_network()
    kept = sorted({weight.layer.name for weight in network.weights if weight.hidden})
    if kept:
        raise ValueError(
            f"{model.name!r} keeps state between batches, in {', '.join(kept)}, so its "
            "outputs depend on the order of requests: make it without stateful=True"
        )
    if any(node.batch_size for node in network.nodes):
        raise ValueError(
            f"{model.name!r} has a fixed batch size, and requests have any number of "
            "samples: make it without batch_size"
        )
    if merges and type(model).predict_step is not Model.predict_step:
        raise ValueError(
            f"{type(model).__name__} has a predict_step of its own, whose results "
            "cannot be divided among requests: pass inference_mode='sequential'"
        )
    if not (merges or limited):
        return
    trace_layers(network)  # what layers compute with is known then
    if network.mixes_samples(training=False):
        raise ValueError(
            f"{model.name!r} has outputs that depend on other samples of a batch, so "
            "requests can be neither joined nor divided: pass "
            "inference_mode='sequential' without batch_limit"
        )


def _is_planned(model: Model) -> bool:
    """Return whether a policy plans the built-in prediction of a model."""
    compiled = model._config
    planned = compiled is None or compiled.modes.is_planned("predict")
    return planned and model._own_steps() is None


def _devices(model: Model, workers: int | None) -> list[str]:
    """Return the names of the workers' devices, that of the model first."""
    compiled = model._config
    device: Device = (
        model._built_session().executor.device
        if model._own_steps() is None or compiled is None
        else config.logical_device(compiled.device)
    )
    names = [each.name for each in config.list_logical_devices()]
    kind = device.name.rpartition(":")[0]
    alike = [name for name in names if name.rpartition(":")[0] == kind]
    first = alike.index(device.name)
    alike = alike[first:] + alike[:first]
    count = len(alike) if workers is None else workers
    return [alike[i % len(alike)] for i in range(count)]
