"""A library's product or convolution, and a generated kernel that adds the bias.

cuDNN can fuse the bias, but then has fewer plans without tensor cores: 2 instead of 7
for a common convolution on an H100.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memcfg.devices.cuda._bound_launch import Bound, bind_source
from memcfg.devices.cuda._sources import CudaSource, cuda_source

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from memcfg.devices._contract import OperandSpec
    from memcfg.devices.cuda.libraries._cublaslt import ChosenProduct
    from memcfg.devices.cuda.libraries._cudnn import ChosenConvolution


@dataclass(frozen=True, eq=False)
class ThenBias:
    """A product or convolution and its bias, the operand before the output."""

    work: ChosenProduct | ChosenConvolution
    source: CudaSource

    @property
    def algorithm(self) -> str:
        """The name of the algorithm."""
        return f"{self.work.algorithm}+bias"

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch that a run needs."""
        return max(self.work.scratch_bytes, self.source.scratch_bytes)

    def bind(self, addresses: Sequence[int], scratch: int) -> list[Bound]:
        """Bind it to addresses of operands and scratch."""
        *inputs, bias, out = addresses
        made: list[Bound] = [*self.work.bind([*inputs, out], scratch)]
        return [*made, *bind_source(self.source, [out, bias, out], scratch)]


def then_bias(
    works: Iterable[ChosenProduct | ChosenConvolution],
    inputs: Sequence[OperandSpec],
    outputs: Sequence[OperandSpec],
) -> Iterator[ThenBias]:
    """Yield works with the bias, the op's last input, added by a second kernel."""
    source = cuda_source("bias", {}, [outputs[0], inputs[-1]], outputs)
    for work in works:
        yield ThenBias(work, source)
