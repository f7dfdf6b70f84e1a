"""Which PyTorch there must be; importing this checks it."""

from __future__ import annotations

import re

from memcfg.errors import MissingDependencyError

_OLDEST = (2, 8)
_TEXT = ".".join(map(str, _OLDEST))


def _require_torch() -> None:
    """Check that PyTorch is there and new enough; MissingDependencyError if not."""
    try:
        import torch
    except ImportError as error:
        raise MissingDependencyError(
            f"memcfg.torch needs PyTorch {_TEXT} or later: `pip install torch` "
            f"({error})"
        ) from None
    match = re.match(r"(\d+)\.(\d+)", torch.__version__)
    if match is None or (int(match[1]), int(match[2])) < _OLDEST:
        raise MissingDependencyError(
            f"memcfg.torch needs PyTorch {_TEXT} or later, and {torch.__version__} is "
            "installed: `pip install --upgrade torch`"
        )


_require_torch()
