"""What a model is apart from training: layers, weights, memory.

Owns the names that do not need `compile`. Refuses loops over data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from memcfg._core import Lock
from memcfg.nn._attributes import Constant, Settled
from memcfg.nn._model_summary import summary_text
from memcfg.nn._naming import check_name
from memcfg.nn._outside import outside
from memcfg.nn._weight_files import check_file_name, check_list, read_file, write_file
from memcfg.nn.training._compile_config import Setup, get_policy
from memcfg.nn.training._execution_modes import PLANNED
from memcfg.nn.training._session import Programs
from memcfg.nn.training._tracing import Program, Recipe

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from memcfg.nn._network import Network, Weight
    from memcfg.nn.layers._layer import Layer
    from memcfg.nn.training._execution_modes import Modes
    from memcfg.plan import Plan
    from memcfg.runtime import MemoryReport

__all__ = ["Foundation"]

Floats = npt.NDArray[np.float32]


class Parts(NamedTuple):
    """What a model is made of; one value, so that no interrupt comes between parts.

    Parameters
    ----------
    network : Network or None
        The architecture; None while shapes are not known.
    setup : Setup or None
        What `compile` said.
    programs : Programs or None
        The values of the network's weights, and what runs on them.
    """

    network: Network | None
    setup: Setup | None
    programs: Programs | None


class Foundation(Settled):
    """The part of a model that holds its architecture and its values.

    Several threads may use a model: each step waits for the one before, whoever made
    it, and a list of weights is that of one moment between two steps.

    Parameters
    ----------
    name : str
        The model's name, which also names the owner of its arena.
    """

    __slots__ = ("_lock", "_parts", "name")

    _advice = "say it to the constructor, compile or fit; stop_training ends a fit"
    trainable = Constant(True, "models cannot be frozen yet")

    def __init__(self, name: str) -> None:
        self.name = check_name(name)
        self._parts = Parts(None, None, None)
        self._lock = Lock(self.name)

    @property
    def _network(self) -> Network | None:
        """The architecture; None while shapes are not known."""
        return self._parts.network

    @property
    def _setup(self) -> Setup | None:
        return self._parts.setup

    @property
    def _programs(self) -> Programs | None:
        return self._parts.programs

    @property
    def built(self) -> bool:
        """Whether the shapes of the weights are known."""
        return self._network is not None

    @property
    def layers(self) -> list[Layer]:
        """The layers, in the order of their weights."""
        return list(self._built_network().layers)

    @property
    def memory_plan(self) -> Plan:
        """The plan of the training step, or of what was loaded last before any.

        Raises
        ------
        RuntimeError
            If nothing is loaded yet.
        """
        with self._lock.turn():
            programs, program = self._lead()
            return programs.loaded_plan(program)

    @outside
    def memory_report(self, *, verify: bool = False) -> MemoryReport:
        """Measure the memory of the program that `memory_plan` speaks of.

        Parameters
        ----------
        verify : bool, default False
            Whether to run one step over a canary to see the highest byte really
            touched. Weights are as before.

        Returns
        -------
        MemoryReport
            Peak, bytes by role, timeline; ``str`` prints it.

        Raises
        ------
        RuntimeError
            If nothing is loaded yet, or this thread is amid a step of the model.
        """
        with self._lock.step():
            programs, program = self._lead()
            return programs.executor.memory_report(program.label, verify=verify)

    def count_params(self) -> int:
        """Return the number of parameters.

        Returns
        -------
        int
            Elements of all weights.

        Raises
        ------
        RuntimeError
            If the shapes are not known yet.
        """
        return sum(weight.size for weight in self._built_network().weights)

    def get_layer(self, name: str) -> Layer:
        """Return a layer by its name.

        Parameters
        ----------
        name : str
            The layer's name.

        Returns
        -------
        Layer
            The layer.

        Raises
        ------
        ValueError
            If there is none of that name.
        """
        for layer in self.layers:
            if layer.name == name:
                return layer
        known = ", ".join(layer.name for layer in self.layers)
        raise ValueError(f"no layer {name!r} in {self.name!r}; there are {known}")

    def summary(self) -> None:
        """Print layers, output shapes, parameters and bytes of each activation."""
        layers = self.layers
        print(summary_text(self.name, layers, self._network), end="")

    @outside
    def get_weights(self) -> list[Floats]:
        """Return copies of all weights.

        Returns
        -------
        list of numpy.ndarray
            Layer by layer, in Keras's order and layouts: kernel ``(KH, KW, C / groups,
            O)`` or ``(inputs, units)``, bias; gamma, beta, moving mean and variance.

        Raises
        ------
        RuntimeError
            If the shapes are not known yet.
        """
        with self._lock.turn():
            weights, programs = self._weights_and_programs()
            return [programs.read(weight.name) for weight in weights]

    @outside
    def set_weights(self, weights: Sequence[npt.ArrayLike]) -> None:
        """Replace all weights.

        Parameters
        ----------
        weights : sequence of array_like
            As `get_weights` returns them; converted to float32.

        Raises
        ------
        RuntimeError
            If the shapes are not known yet.
        WeightsError
            If number or shapes differ; nothing changed then.
        """
        self._write(check_list(self._built_network().weights, weights))

    @outside
    def save_weights(self, path: str | os.PathLike[str]) -> None:
        """Write all weights to a safetensors file.

        Automatic layer names are numbered within the model, so the file does not
        depend on what else the process made. The optimizer's state is not saved.

        Parameters
        ----------
        path : str or path-like
            The file, such as ``"x.weights.safetensors"``; replaced if it exists, and
            only by a complete one.

        Raises
        ------
        OSError
            If it cannot be written.
        RuntimeError
            If the shapes are not known yet.
        ValueError
            If the name ends in the suffix of another format, such as ``.h5``.

        Notes
        -----
        One weight at a time is copied to the host. Other threads wait until the file is
        written, so that it holds the weights of one step.
        """
        check_file_name(path)
        with self._lock.turn():
            weights, programs = self._weights_and_programs()
            write_file(path, weights, programs.read)

    @outside
    def load_weights(self, path: str | os.PathLike[str]) -> None:
        """Read all weights from a safetensors file.

        Parameters
        ----------
        path : str or path-like
            A file that `save_weights` wrote for a model of this architecture, whatever
            its name.

        Raises
        ------
        OSError
            If it cannot be read.
        RuntimeError
            If the shapes are not known yet.
        WeightsError
            If it is truncated, or names, shapes or dtypes differ; nothing changed
            then.
        """
        self._write(read_file(path, self._built_network().weights))

    @outside
    def close(self) -> None:
        """Give the device's memory back.

        Weights and optimizer state move to the host; the model stays usable, and takes
        memory again with the next step, also with that of another thread's `fit`.

        Raises
        ------
        RuntimeError
            If this thread is amid a step of the model.
        """
        with self._lock.step():
            if self._programs is not None:
                self._programs.retire()

    def __del__(self) -> None:
        programs = getattr(self, "_programs", None)
        if programs is not None:
            programs.close()

    def _adopt(self, network: Network, values: dict[str, Floats] | None = None) -> None:
        """Take an architecture; the layers belong to this model from now on."""
        owned = [layer for layer in network.layers if layer.weight_specs]
        for layer in owned:
            layer.check_free(self)
        for layer in owned:
            layer.claim(self)
        if self._programs is not None:
            values = self._programs.known_values()
        programs = self._make_programs(network, self._setup, values)
        self._replace(Parts(network, self._setup, programs))

    def _replace(self, parts: Parts) -> None:
        """Become these parts in one act; then give back what the old ones had."""
        before, self._parts = self._parts.programs, parts
        if before is not None and before is not parts.programs:
            before.supersede()

    def _make_programs(
        self, network: Network, setup: Setup | None, values: dict[str, Floats] | None
    ) -> Programs:
        if setup is None:
            recipe = Recipe(self.name, network, None, counting=False)
            return Programs(recipe, get_policy(None), PLANNED, None, self._lock, values)
        recipe = Recipe(self.name, network, setup.optimizer, bool(setup.metrics))
        return Programs(
            recipe, setup.policy, setup.modes, setup.device, self._lock, values
        )

    def _modes(self) -> Modes:
        return PLANNED if self._setup is None else self._setup.modes

    def _built_network(self) -> Network:
        found = self._network
        if found is None:
            raise RuntimeError(
                f"the shapes of {self.name!r} are not known yet: start it with "
                "Input(shape), call build(input_shape), or fit or predict first"
            )
        return found

    def _built_programs(self) -> Programs:
        self._built_network()
        assert self._programs is not None  # made together with the network
        return self._programs

    def _weights_and_programs(self) -> tuple[Sequence[Weight], Programs]:
        return self._built_network().weights, self._built_programs()

    def _write(self, values: Sequence[Floats]) -> None:
        with self._lock.turn():
            weights, programs = self._weights_and_programs()
            for weight, value in zip(weights, values, strict=True):
                programs.write(weight.name, value)

    def _lead(self) -> tuple[Programs, Program]:
        programs = None if self._network is None else self._programs
        if programs is None or programs.lead is None:
            raise RuntimeError(
                f"{self.name!r} has no memory plan yet: call fit, evaluate or predict "
                "first, or plan(batch_size) to plan without taking memory"
            )
        return programs, programs.lead

    def __repr__(self) -> str:
        return f"<{type(self).__name__} name={self.name!r} built={self.built}>"
