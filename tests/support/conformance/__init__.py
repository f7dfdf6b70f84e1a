"""Models that people train, with small random configurations; nothing is downloaded.

`cases` has them by name, of each library that is installed.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from torchvision_ops import torchvision

from conformance._case import loss_of

if TYPE_CHECKING:
    from conformance._case import Case

__all__ = ["LIBRARIES", "cases", "loss_of", "torchvision"]

LIBRARIES = ("own", "timm", "transformers", "torchvision", "diffusers")


def cases(*libraries: str) -> dict[str, Case]:
    """Return the models of libraries by name, of those that are installed."""
    found: dict[str, Case] = {}
    for each in libraries or LIBRARIES:
        if each == "own" or find_spec(each) is not None:
            if each != "own" and find_spec("torchvision") is not None:
                torchvision()  # whose ops others ask for
            found |= getattr(import_module(f"conformance._{each}"), each.upper())
    return found
