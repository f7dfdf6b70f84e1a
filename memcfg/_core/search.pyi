from collections.abc import Callable, Sequence
from typing import Self, TypeAlias, final

# Tensor, first step, last step, source instance, in a state's buffer, offset.
_Instance: TypeAlias = tuple[int, int, int, int, bool, int]

def pack(
    lower: Sequence[int],
    upper: Sequence[int],
    size: Sequence[int],
    *,
    effort: int,
    goal: int,
    is_over: Callable[[], bool],
) -> tuple[list[int], int, int, int, int, int, int]: ...

@final
class Layout:
    @property
    def instances(self) -> list[_Instance]: ...
    @property
    def scratch(self) -> list[int]: ...
    @property
    def height(self) -> int: ...
    @property
    def bound(self) -> int: ...

@final
class Step:
    def __new__(
        cls,
        tensors: Sequence[tuple[int, bool, bool, int]],
        ops: Sequence[
            tuple[
                Sequence[int], Sequence[int], Sequence[int], int, int, float, bool, bool
            ]
        ],
    ) -> Self: ...
    def score(self, dropped: bytes) -> tuple[int, float, int, bytes]: ...
    def uneven_segments(self, budget: int) -> bytes | None: ...
    def budget_segments(self, budget: int) -> bytes: ...
    def sequence(self, dropped: bytes) -> list[int]: ...
    def fault(self, sequence: Sequence[int]) -> str | None: ...
    def measure(self, sequence: Sequence[int]) -> tuple[int, float, int]: ...
    def layout(self, sequence: Sequence[int], *, rule: int, effort: int) -> Layout: ...
