"""The kernels of a GPU: generated sources, compiled at their first run."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

from memcfg._cached import cached_property
from memcfg._core import CudaContext, CudaModule, CudaStream
from memcfg.devices._algorithm_times import AlgorithmTimes, asks_for_times
from memcfg.devices._contract import KernelTable
from memcfg.devices.cuda._bound_launch import BoundLaunch, bind_source
from memcfg.devices.cuda._codec_sources import CODECS
from memcfg.devices.cuda._convolution_spec import describe_convolution
from memcfg.devices.cuda._host_collective import HostCollective
from memcfg.devices.cuda._kernel_times import measure_launches
from memcfg.devices.cuda._sources import CudaSource, cuda_source, has_source
from memcfg.devices.cuda._then_bias import ThenBias, then_bias
from memcfg.devices.cuda.libraries._cublaslt import (
    ChosenProduct,
    CublasLt,
    describe_product,
)
from memcfg.devices.cuda.libraries._cudnn import ChosenConvolution, Cudnn
from memcfg.errors import KernelError
from memcfg.ops.collectives import COLLECTIVES
from memcfg.ops.sections import READS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from memcfg._core import CudaFunction
    from memcfg.devices._contract import OperandSpec
    from memcfg.devices.cuda._bound_launch import Bound
    from memcfg.memory import Pool

Compiler: TypeAlias = Callable[[str, int], bytes]  # (source, capability) -> image
LoadCublasLt: TypeAlias = Callable[[CudaContext], CublasLt | None]
LoadCudnn: TypeAlias = Callable[[CudaContext], Cudnn | None]
_Chosen: TypeAlias = ChosenProduct | ChosenConvolution | ThenBias
_Work: TypeAlias = CudaSource | _Chosen

_GENERATED = "cuda"
_NAMES = re.compile(r"^(memcfg_\w+)\(", re.MULTILINE)  # names of a source's kernels
_TOGETHER = 16  # sources compiled as one, if there are enough for parallel compilers


class CudaModules:
    """The loaded functions of a GPU, by name; shared by its logical devices."""

    def __init__(
        self,
        context: CudaContext,
        capability: int,
        compiler: Compiler,
        load_cublaslt: LoadCublasLt,
        load_cudnn: LoadCudnn,
    ) -> None:
        self.context = context
        self._load_cublaslt = load_cublaslt
        self._load_cudnn = load_cudnn
        self._capability = capability
        self._compiler = compiler
        self._functions: dict[str, CudaFunction] = {}
        self._lock = threading.Lock()  # not used in a forked child: no context there
        self.times = AlgorithmTimes()

    @cached_property
    def cublaslt(self) -> CublasLt | None:
        """The cuBLASLt library; None if generated kernels compute matrix products."""
        return self._load_cublaslt(self.context)

    @cached_property
    def cudnn(self) -> Cudnn | None:
        """The cuDNN library; None if generated kernels compute convolutions."""
        return self._load_cudnn(self.context)

    def load(self, wanted: Mapping[str, str]) -> None:
        """Compile and load functions, given their sources by name.

        Sources are joined, and several are compiled in parallel. Another thread that
        loads functions waits.
        """
        if all(name in self._functions for name in wanted):
            return
        self.context.call(bool)
        with self._lock:
            self._load(wanted)

    def _load(self, wanted: Mapping[str, str]) -> None:
        missing = {n: text for n, text in wanted.items() if n not in self._functions}
        texts = sorted(
            set(missing.values())
        )  # sorted: equal joins are in the disk cache
        if not texts:
            return
        count = min(os.cpu_count() or 1, -(-len(texts) // _TOGETHER))
        groups = [texts[first::count] for first in range(count)]
        with ThreadPoolExecutor(count, "memcfg compiles") as pool:
            images = pool.map(self._compile, groups)
            modules = [CudaModule(self.context, image) for image in images]
        place = {text: i % count for i, text in enumerate(texts)}
        for name, text in missing.items():
            self._functions[name] = modules[place[text]].function(name)

    def function(self, name: str) -> CudaFunction:
        """Return a loaded function."""
        return self._functions[name]

    def _compile(self, texts: Sequence[str]) -> bytes:
        """Compile joined sources; KernelError names the kernels that fail alone."""
        try:
            return self._compiler("\n".join(texts), self._capability)
        except KernelError as error:
            if len(texts) > 1:
                for text in texts:
                    self._compile([text])
                raise  # each compiles alone
            names = ", ".join(_NAMES.findall(texts[0]))
            raise KernelError(f"{names}: {error}") from error


@dataclass(frozen=True)
class CudaKernel:
    """The kernel of an op, with the bytes and the access of each operand."""

    work: _Work
    sizes: tuple[tuple[int, bool], ...]
    table: CudaKernels

    kernel = None

    @property
    def algorithm(self) -> str:
        """The name of the algorithm."""
        return _name(self.work)

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch that a run needs."""
        return self.work.scratch_bytes

    def instruction(self) -> CudaKernel:
        """Return the argument for `compute` of programs."""
        return self

    def bind(self, addresses: Sequence[int], scratch: int) -> Sequence[Bound]:
        """Return its launches, bound to addresses of operands and scratch."""
        if isinstance(self.work, CudaSource):
            return bind_source(self.work, addresses, scratch)
        return self.work.bind(addresses, scratch)

    def run(self, addresses: Sequence[int], scratch: int) -> None:
        """Run once on a new stream, and wait."""
        launches = self.bind(addresses, scratch)
        self.table.load(launches)
        stream = CudaStream(self.table.modules.context)
        try:
            for launch in launches:
                launch.issue(stream)
        finally:
            stream.synchronize()  # even if a launch failed: earlier ones are queued

    def measure(self, pool: Pool) -> float:
        """Return the seconds of a run in memory of a pool; 0 if that has too little."""

        def bind(addresses: Sequence[int]) -> Sequence[Bound]:
            launches = self.bind(addresses[:-1], addresses[-1])
            self.table.load(launches)
            return launches

        sizes = [*(size for size, _ in self.sizes), self.scratch_bytes]
        return measure_launches(bind, sizes, self.table.modules.context, pool)


class CudaKernels(KernelTable):
    """The kernels of all types of ops with a CUDA source, and those of libraries."""

    name = "cuda"

    def __init__(self, modules: CudaModules, pool: Pool) -> None:
        self.modules = modules
        self._pool = pool
        self._measures = asks_for_times()

    def has(self, op_type: str) -> bool:
        """Return whether a type has a source other than an expression."""
        return has_source(op_type)

    def algorithms(
        self,
        op_type: str,
        attributes: Mapping[str, Any],
        inputs: Sequence[OperandSpec],
        outputs: Sequence[OperandSpec],
    ) -> list[tuple[str, int, float]]:
        """List the libraries' algorithms in their order, then the generated kernel.

        Seconds are measured if ``MEMCFG_MEASURE`` is set.
        """
        if op_type in COLLECTIVES:
            return [(HostCollective.algorithm, 0, 0.0)]
        op = (op_type, attributes, inputs, outputs)
        result = self._all(*op)
        if self._measures and len(result) > 1:
            return self.measure(*op)
        return [(each.algorithm, each.scratch_bytes, 0.0) for each in result]

    def measure(
        self,
        op_type: str,
        attributes: Mapping[str, Any],
        inputs: Sequence[OperandSpec],
        outputs: Sequence[OperandSpec],
    ) -> list[tuple[str, int, float]]:
        """List the algorithms as `algorithms` does, with the seconds of each.

        They run in memory of the device's pool, once for each shape in a process.
        Seconds are 0 if the pool has too little memory.
        """
        op = (op_type, attributes, inputs, outputs)
        return self.modules.times.rows(op, self._all(*op), self._pool)

    def packing(
        self,
        op_type: str,
        attributes: Mapping[str, Any],
        inputs: Sequence[OperandSpec],
        outputs: Sequence[OperandSpec],
        algorithm: str | None = None,
    ) -> None:
        """Return None: a GPU's kernels read weights as they are."""

    def make(
        self,
        op_type: str,
        attributes: Mapping[str, Any],
        inputs: Sequence[OperandSpec],
        outputs: Sequence[OperandSpec],
        algorithm: str | None = None,
    ) -> CudaKernel | HostCollective:
        """Make the kernel of one op; nothing is compiled yet."""
        if op_type in COLLECTIVES and algorithm in (None, HostCollective.algorithm):
            return HostCollective(op_type, attributes, tuple(inputs), tuple(outputs))
        if op_type in READS:
            raise KernelError(
                f"{op_type!r} does not run on a GPU: files are read into memory of the "
                "host. Predict on a CPU, or with the model that model() decodes"
            )
        op = (op_type, attributes, inputs, outputs)
        generated = cuda_source(*op)  # checks the operands
        works: Iterator[_Work] = iter([generated])
        if algorithm != _GENERATED:
            works = chain(self._of_libraries(*op), works)
        fitting = (work for work in works if algorithm in (None, _name(work)))
        work = next(fitting, None)
        if work is None:
            raise KernelError(f"{op_type!r} has no algorithm {algorithm!r}")
        return self._kernel(work, inputs, outputs)

    def codec(self, name: str, direction: str, read: int, written: int) -> CudaKernel:
        """Make the kernel that encodes or decodes, given the bytes read and written."""
        source = CODECS[name, direction](read, written)
        return CudaKernel(source, ((read, False), (written, True)), self)

    def load(self, launches: Iterable[Bound]) -> None:
        """Compile and load the functions of launches."""
        missing = [
            each
            for each in launches
            if isinstance(each, BoundLaunch) and each.function is None
        ]
        self.modules.load({each.launch.function: each.text for each in missing})
        for each in missing:
            each.function = self.modules.function(each.launch.function)

    def _all(
        self,
        op_type: str,
        attributes: Mapping[str, Any],
        inputs: Sequence[OperandSpec],
        outputs: Sequence[OperandSpec],
    ) -> list[CudaKernel]:
        """Make a kernel of each algorithm; the default is the first."""
        op = (op_type, attributes, inputs, outputs)
        generated = cuda_source(*op)  # checks the operands
        works = (*self._of_libraries(*op), generated)
        return [self._kernel(work, inputs, outputs) for work in works]

    def _kernel(
        self,
        work: _Work,
        inputs: Sequence[OperandSpec],
        outputs: Sequence[OperandSpec],
    ) -> CudaKernel:
        sizes = [(spec.nbytes, False) for spec in inputs]
        sizes += [(spec.nbytes, True) for spec in outputs]
        return CudaKernel(work, tuple(sizes), self)

    def _of_libraries(
        self,
        op_type: str,
        attributes: Mapping[str, Any],
        inputs: Sequence[OperandSpec],
        outputs: Sequence[OperandSpec],
    ) -> Iterator[_Chosen]:
        """Yield the libraries' algorithms of a valid op; loads the libraries.

        The bias of a product is fused if there is such an algorithm. For convolutions,
        plans with a fused bias come last: cuDNN has fewer engines for them.
        """
        op = (op_type, attributes, inputs, outputs)
        product = describe_product(*op)
        if product is not None and self.modules.cublaslt is not None:
            own = [*self.modules.cublaslt.choices(product)]
            yield from own
            if product.bias is not None and not own:
                apart = replace(product, bias=None)
                yield from then_bias(self.modules.cublaslt.choices(apart), *op[2:])
        convolution = describe_convolution(*op)
        if convolution is not None and self.modules.cudnn is not None:
            if convolution.op_type == "conv2d_bias":
                plain = replace(convolution, op_type="conv2d")
                yield from then_bias(self.modules.cudnn.choices(plain), *op[2:])
            yield from self.modules.cudnn.choices(convolution)


def _name(work: _Work) -> str:
    return _GENERATED if isinstance(work, CudaSource) else work.algorithm
