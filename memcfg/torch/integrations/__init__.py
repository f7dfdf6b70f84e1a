"""Callbacks of training loops that others have written.

`memcfg.torch.integrations.transformers` and `memcfg.torch.integrations.lightning` each
have a `BudgetCallback` of their library, which is imported with the module.
"""

from __future__ import annotations

__all__: list[str] = []
