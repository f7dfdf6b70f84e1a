"""The kernels of a GPU: generated sources, compiled and loaded when they first run."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from memcfg._cached import cached_property
from memcfg._core import CudaContext, CudaModule, CudaStream
from memcfg.devices._contract import KernelTable
from memcfg.devices.cuda._codec_sources import CODECS
from memcfg.devices.cuda._cublaslt import (
    BoundProduct,
    ChosenProduct,
    CublasLt,
    describe_product,
)
from memcfg.devices.cuda._sources import cuda_source
from memcfg.errors import KernelError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from memcfg._core import CudaFunction
    from memcfg.devices._contract import OperandSpec
    from memcfg.devices.cuda._sources import CudaSource, Launch

Compiler: TypeAlias = Callable[[str, int], bytes]  # source, capability: image
LoadCublasLt: TypeAlias = Callable[[CudaContext], CublasLt | None]

_GENERATED = "cuda"
_CUBLASLT = "cublaslt"
_TOGETHER = 16  # sources that are compiled as one, where others could be beside them


class CudaModules:
    """The loaded functions of a GPU, by their names; its logical devices share them."""

    def __init__(
        self,
        context: CudaContext,
        capability: int,
        compiler: Compiler,
        load_cublaslt: LoadCublasLt,
    ) -> None:
        self.context = context
        self._load_cublaslt = load_cublaslt
        self._capability = capability
        self._compiler = compiler
        self._functions: dict[str, CudaFunction] = {}

    @cached_property
    def cublaslt(self) -> CublasLt | None:
        """What multiplies matrices; None where the generated kernels do."""
        return self._load_cublaslt(self.context)

    def load(self, wanted: Mapping[str, str]) -> None:
        """Have functions loaded, by their names and sources.

        Sources are joined, as they allow, and several are compiled at once.
        """
        missing = {n: text for n, text in wanted.items() if n not in self._functions}
        texts = sorted(set(missing.values()))  # what is joined again is on the disk
        if not texts:
            return
        count = min(os.cpu_count() or 1, -(-len(texts) // _TOGETHER))
        groups = [texts[first::count] for first in range(count)]
        with ThreadPoolExecutor(count, "memcfg compiles") as pool:
            images = pool.map(self._compile, ["\n".join(group) for group in groups])
            modules = [CudaModule(self.context, image) for image in images]
        place = {text: i % count for i, text in enumerate(texts)}
        for name, text in missing.items():
            self._functions[name] = modules[place[text]].function(name)

    def function(self, name: str) -> CudaFunction:
        """Return one that is loaded."""
        return self._functions[name]

    def _compile(self, text: str) -> bytes:
        return self._compiler(text, self._capability)


@dataclass(slots=True)
class BoundLaunch:
    """A launch with the addresses of its operands; its function comes when loaded."""

    text: str
    launch: Launch
    arguments: bytes
    offsets: tuple[int, ...]
    function: CudaFunction | None = None

    def issue(self, stream: CudaStream) -> None:
        """Put it on a stream."""
        assert self.function is not None
        launch = self.launch
        stream.launch(
            self.function,
            launch.grid,
            launch.block,
            launch.shared_bytes,
            self.arguments,
            self.offsets,
        )


@dataclass(frozen=True)
class CudaKernel:
    """What an op does, with the bytes of each operand and whether it is written."""

    work: CudaSource | ChosenProduct
    sizes: tuple[tuple[int, bool], ...]
    table: CudaKernels

    kernel = None

    @property
    def algorithm(self) -> str:
        """Whose work it is."""
        return _CUBLASLT if isinstance(self.work, ChosenProduct) else _GENERATED

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch that a run needs."""
        return self.work.scratch_bytes

    def instruction(self) -> CudaKernel:
        """Return what `compute` takes."""
        return self

    def bind(
        self, addresses: Sequence[int], scratch: int
    ) -> Sequence[BoundLaunch | BoundProduct]:
        """Return its launches on operands at these addresses."""
        if isinstance(self.work, ChosenProduct):
            return self.work.bind(addresses, scratch)
        return [
            BoundLaunch(self.work.text, launch, *launch.pack(addresses, scratch))
            for launch in self.work.launches
        ]

    def run(self, addresses: Sequence[int], scratch: int) -> None:
        """Run once, on a stream of its own, to the end."""
        launches = self.bind(addresses, scratch)
        self.table.load(launches)
        stream = CudaStream(self.table.modules.context)
        for launch in launches:
            launch.issue(stream)
        stream.synchronize()


class CudaKernels(KernelTable):
    """Kernels of every type of op that has a CUDA source, and cuBLASLt's products."""

    name = "cuda"

    def __init__(self, modules: CudaModules) -> None:
        self.modules = modules

    def algorithms(
        self,
        op_type: str,
        attributes: Mapping[str, Any],
        inputs: Sequence[OperandSpec],
        outputs: Sequence[OperandSpec],
    ) -> list[tuple[str, int, float]]:
        """List cuBLASLt's, where it has one, and the generated one."""
        op = (op_type, attributes, inputs, outputs)
        generated = self.make(*op, _GENERATED)
        chosen = self._choose(*op)
        found = [(_GENERATED, generated.scratch_bytes, 0.0)]
        if chosen is not None:
            found.insert(0, (_CUBLASLT, chosen.scratch_bytes, 0.0))
        return found

    def make(
        self,
        op_type: str,
        attributes: Mapping[str, Any],
        inputs: Sequence[OperandSpec],
        outputs: Sequence[OperandSpec],
        algorithm: str | None = None,
    ) -> CudaKernel:
        """Make the kernel of one op; nothing is compiled yet."""
        op = (op_type, attributes, inputs, outputs)
        work: CudaSource | ChosenProduct = cuda_source(*op)  # which checks operands
        chosen = self._choose(*op) if algorithm != _GENERATED else None
        if chosen is not None and algorithm in (None, _CUBLASLT):
            work = chosen
        elif algorithm not in (None, _GENERATED):
            raise KernelError(f"{op_type!r} has no algorithm {algorithm!r}")
        sizes = [(spec.nbytes, False) for spec in inputs]
        sizes += [(spec.nbytes, True) for spec in outputs]
        return CudaKernel(work, tuple(sizes), self)

    def codec(self, name: str, direction: str, read: int, written: int) -> CudaKernel:
        """Make what encodes or decodes, of bytes that are read and written."""
        source = CODECS[name, direction](read, written)
        return CudaKernel(source, ((read, False), (written, True)), self)

    def load(self, launches: Iterable[BoundLaunch | BoundProduct]) -> None:
        """Have the functions of launches compiled and loaded."""
        found = [
            each
            for each in launches
            if isinstance(each, BoundLaunch) and each.function is None
        ]
        self.modules.load({each.launch.function: each.text for each in found})
        for each in found:
            each.function = self.modules.function(each.launch.function)

    def _choose(
        self,
        op_type: str,
        attributes: Mapping[str, Any],
        inputs: Sequence[OperandSpec],
        outputs: Sequence[OperandSpec],
    ) -> ChosenProduct | None:
        """Return cuBLASLt's way of a valid op; the library is looked for by now."""
        product = describe_product(op_type, attributes, inputs, outputs)
        if product is None or self.modules.cublaslt is None:
            return None
        return self.modules.cublaslt.choose(product)
