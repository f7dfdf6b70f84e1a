"""What autograd saves, held within a limit: for models that cannot be traced."""

from __future__ import annotations

__all__: list[str] = []
