"""Stand-ins for PyTorch and its trainers: any name is a class that does nothing.

memcfg.torch registers functions for PyTorch's classes, derives from them and decorates
with its functions. All of that works with classes; nothing can be computed with them.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType
from typing import Any, ClassVar


class Name(type):
    """The type of stand-ins: their attributes are stand-ins, too."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = made(name, f"{cls.__module__}.{cls.__name__}")
        setattr(cls, name, found)
        return found

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        """Return what is decorated, or a stand-in for the result."""
        if len(arguments) == 1 and isinstance(arguments[0], FunctionType | type):
            return arguments[0]
        return cls


def made(name: str, place: str) -> Name:
    """Return a new stand-in."""
    return Name(name, (), {"__module__": place})


class Module(ModuleType):
    """A module all of whose names are stand-ins."""

    __path__: ClassVar[list[str]] = []
    __version__ = "2.13.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = made(name, self.__name__)
        setattr(self, name, found)
        return found


class Finder(MetaPathFinder, Loader):
    """Finds any module of one package."""

    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name.partition(".")[0] != self.package:
            return None
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def stand_in_for_torch() -> None:
    """Let memcfg.torch be imported, whether PyTorch is there or not."""
    if "torch" not in sys.modules:
        for package in ("torch", "lightning", "pytorch_lightning", "transformers"):
            sys.meta_path.insert(0, Finder(package))
        autograd: Any = import_module("torch.autograd")
        autograd.Function.apply = classmethod(made("apply", "torch"))
