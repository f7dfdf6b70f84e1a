"""Constants that tf.data has under `experimental`; also in `memcfg.data`."""

from __future__ import annotations

from memcfg.data.engine._autotune import AUTOTUNE
from memcfg.data.ops._node import INFINITE as INFINITE_CARDINALITY
from memcfg.data.ops._node import UNKNOWN as UNKNOWN_CARDINALITY

__all__ = ["AUTOTUNE", "INFINITE_CARDINALITY", "UNKNOWN_CARDINALITY"]
