"""What tests of the repository share: libraries that modules of memcfg.torch import."""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("torch") is not None and find_spec("torchvision") is not None:
    from torchvision_ops import torchvision

    torchvision()  # whose ops may be another PyTorch's, and others ask for
