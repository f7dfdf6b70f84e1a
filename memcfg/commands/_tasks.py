"""A training step of a network of the zoo: model, loss, optimizer, random batch."""

from __future__ import annotations

import argparse
import ast
import inspect
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg import config, models, nn
from memcfg.graph import TIMES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from collections.abc import Set as AbstractSet

    from memcfg.graph import Graph
    from memcfg.nn import SymbolicTensor
    from memcfg.plan import Policy

_RATE = 1e-4  # the same random batch over and over: larger ones diverge
_NO_HEAD = frozenset({"bert_encoder"})  # networks that return features, not logits

_EXAMPLES = {"depth": 20}  # of the arguments that a network needs

NETWORKS: Mapping[str, Callable[..., nn.Model]] = {
    name: getattr(models, name)
    for name in models.__all__
    if inspect.signature(getattr(models, name)).return_annotation
    in ("nn.Model", "Model")
}
"""The builder of each network."""


@dataclass(frozen=True)
class Task:
    """A network to train, with SGD with momentum on a random batch."""

    network: str
    batch: int
    arguments: Mapping[str, Any] = field(default_factory=dict)
    times: str = TIMES[0]
    optimizer: str | None = None  # None: SGD with momentum
    dtype: str | None = None  # a dtype policy

    def model(
        self, policy: Policy | str = "auto", *, batch_statistics: str | None = None
    ) -> nn.Model:
        """Build the network and compile it; weights are the same every time."""
        nn.set_random_seed(0)
        before = config.dtype_policy()
        if self.dtype is not None:
            config.set_dtype_policy(self.dtype)
        try:
            model = NETWORKS[self.network](**self.arguments)
        finally:
            config.set_dtype_policy(before)
        loss: nn.losses.Loss = nn.SparseCategoricalCrossentropy(from_logits=True)
        if self.network in _NO_HEAD:
            loss = nn.losses.MeanSquaredError()
        optimizer: nn.optimizers.Optimizer | str = nn.SGD(_RATE, momentum=0.9)
        if self.optimizer is not None:
            optimizer = self.optimizer
        model.compile(
            optimizer,
            loss,
            memory=policy,
            times=self.times,
            on_oom="raise" if batch_statistics is None else "micro_batch",
            batch_statistics=batch_statistics,
        )
        return model

    def graph(self) -> Graph:
        """Trace the training step."""
        model = self.model()
        try:
            return model.graph(self.batch)
        finally:
            model.close()

    def data(self, model: nn.Model) -> tuple[Any, np.ndarray]:
        """Make a batch: normal numbers, or token ids that are in every vocabulary."""
        rng = np.random.default_rng(0)
        inputs = []
        for given in model.inputs:
            shape = self._shape(given)
            whole = np.issubdtype(np.dtype(given.dtype), np.integer)
            x = rng.integers(0, 2, shape) if whole else rng.standard_normal(shape)
            inputs.append(x.astype(given.dtype))
        *positions, width = self._shape(model.outputs[0])
        if self.network in _NO_HEAD:
            y = np.zeros((*positions, width), np.float32)
        else:
            y = rng.integers(0, width, positions).astype(np.int32)
        return (inputs[0] if len(inputs) == 1 else inputs), y

    def _shape(self, tensor: SymbolicTensor) -> tuple[int, ...]:
        return tuple(self.batch if size is None else size for size in tensor.shape)


@dataclass(frozen=True)
class OwnTask:
    """The training step of a model file, compiled as it was when it was saved."""

    network: str  # the file
    batch: int
    lengths: list[int] | None = None  # of axes of None

    def model(self) -> nn.Model:
        """Load the model."""
        return nn.models.load_model(self.network)

    def model_of_lengths(self) -> nn.Model:
        """Load the model; ValueError unless its axes of None have lengths."""
        model, given = self.model(), self.lengths or []
        axes = [size for each in model.inputs for size in each.shape[1:]].count(None)
        if len(given) not in ((1, axes) if axes else (0,)):
            shown = ", ".join(str(each.shape) for each in model.inputs)
            model.close()
            if not axes:
                raise ValueError(f"{self.network} reads {shown}: leave out --lengths")
            several = "" if axes == 1 else f", or {axes} lengths with commas"
            raise ValueError(
                f"{self.network} reads {shown}: pass a length of the axes of None, "
                f"such as --lengths 50{several}"
            )
        return model

    @property
    def of_axes(self) -> int | list[int] | None:
        """The lengths as methods of a model take them."""
        given = self.lengths
        return given[0] if given is not None and len(given) == 1 else given

    def graph(self) -> Graph:
        """Trace the training step; RuntimeError if the model was not compiled."""
        model = self.model_of_lengths()
        try:
            return model.graph(self.batch, lengths=self.of_axes)
        finally:
            model.close()


def missing(network: str, given: AbstractSet[str]) -> list[str]:
    """Return the arguments that a network lacks, as ``--set`` takes them.

    Nothing if it has an argument that it does not take: that is reported first.
    """
    known = inspect.signature(NETWORKS[network]).parameters
    if not known.keys() >= given:
        return []
    needed = [
        name
        for name, each in known.items()
        if each.default is each.empty and name not in given
    ]
    return [f"--set {name}={_EXAMPLES.get(name, 'VALUE')}" for name in needed]


def read_setting(text: str) -> tuple[str, Any]:
    """Parse ``depth=1001``: a name, and a number, tuple or word.

    A value is JSON, a Python literal such as ``(64, 64, 1)``, or else a word. A value
    that JSON cannot represent, such as a set, is refused.
    """
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    for read in (json.loads, ast.literal_eval):
        try:
            result = read(value)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if not _is_written(result):
            raise argparse.ArgumentTypeError(
                f"{text}: a value is a number, a word, a tuple or a list"
            )
        return name, result
    return name, value


def _is_written(value: object) -> bool:
    """Return whether JSON can represent a value."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True
