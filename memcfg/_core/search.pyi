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
        *,
        is_over: Callable[[], bool] | None = None,
    ) -> Self: ...
    def score(self, dropped: bytes) -> tuple[int, float, int, bytes]: ...
    def uneven_segments(self, budget: int) -> bytes | None: ...
    def budget_segments(self, budget: int) -> bytes: ...
    def sequence(self, dropped: bytes) -> list[int]: ...
    def fault(self, sequence: Sequence[int]) -> str | None: ...
    def measure(self, sequence: Sequence[int]) -> tuple[int, float, int]: ...
    def reorder(
        self, sequence: Sequence[int], *, effort: int
    ) -> tuple[list[int], int, int]: ...
    @property
    def is_small(self) -> bool: ...
    def least_cost(
        self,
        limit: int,
        *,
        effort: int,
        below: tuple[float, int] | None = None,
        any: bool = False,  # noqa: A002
    ) -> tuple[int, list[int], int, float, int]: ...
    def least_load(
        self,
        sequence: Sequence[int],
        *,
        effort: int,
        any: bool = False,  # noqa: A002
    ) -> tuple[list[int], int, int, int]: ...
    def descend(
        self, start: Sequence[int], goal: int, *, work: int
    ) -> list[list[int]]: ...
    def within(
        self, starts: Sequence[Sequence[int]], limit: int, *, work: int
    ) -> list[int] | None: ...
    def cheaper(
        self, start: Sequence[int], limit: int, *, work: int
    ) -> list[list[int]]: ...
    def replanned(
        self, start: Sequence[int], limit: int, *, effort: int
    ) -> list[list[int]]: ...
    def layout(self, sequence: Sequence[int], *, rule: int, effort: int) -> Layout: ...
    def first_fit(self, sequence: Sequence[int], *, rule: int) -> Layout: ...
    def extra_cost(self, limit: int, *, effort: int) -> float: ...

@final
class ChainTable:
    def __new__(
        cls, stages: Sequence[tuple[float, int, int, int, int, int]], slots: int
    ) -> Self: ...
    def cost(self, first: int, last: int, slots: int) -> float: ...
    def choice(self, first: int, last: int, slots: int) -> int: ...

@final
class BlockChain:
    def __new__(
        cls,
        kinds: Sequence[
            tuple[
                Sequence[tuple[int, int, float, float, float]],
                int,
                int,
                int,
                int,
                float,
            ]
        ],
        chain: Sequence[int],
        *,
        is_over: Callable[[], bool] | None = None,
    ) -> Self: ...
    @property
    def most(self) -> int: ...
    def plan(self, limit: int) -> list[tuple[int, int, int, int]]: ...

@final
class LowerSets:
    def __new__(
        cls,
        times: Sequence[int],
        sizes: Sequence[int],
        before: Sequence[Sequence[int]],
        *,
        exact: bool,
        most: int,
    ) -> Self: ...
    def __len__(self) -> int: ...
    @property
    def complete(self) -> bool: ...
    @property
    def pairs(self) -> int: ...
    @property
    def whole(self) -> int: ...
    def feasible(self, budget: int) -> bool: ...
    def strategy(self, budget: int, *, longest: bool) -> list[int] | None: ...
