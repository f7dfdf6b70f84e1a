from collections.abc import Callable
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, final

import numpy as np

from memcfg._core.engine import Resource
from memcfg.errors import ResourceExhaustedError

_P = ParamSpec("_P")
_R = TypeVar("_R")

__all__ = ["NumpyAllocator", "resource_of"]

@final
class NumpyAllocator:
    def __new__(cls, resource: Resource, *, tag: str = "numpy") -> Self: ...
    @property
    def resource(self) -> Resource: ...
    @property
    def tag(self) -> str: ...
    @property
    def refusal(self) -> ResourceExhaustedError | None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
    def __call__(self, function: Callable[_P, _R]) -> Callable[_P, _R]: ...

def resource_of(array: np.ndarray[Any, Any]) -> Resource | None: ...
