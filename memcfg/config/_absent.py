"""Names of tf.config that have no meaning here, and what to do instead.

Using such a name is an AttributeError, so ``hasattr`` is right and nothing is ignored
silently.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_EAGER = "every step is one static graph and runs as such; remove the call"
_CLUSTER = "memcfg runs in one process; remove the call"
_TF32 = (
    "kernels compute in full float32, unless MEMCFG_CUDA_TF32=1 asks for products in "
    "TF32 on a GPU; remove the call"
)
_MLIR = "memcfg has no MLIR bridge; remove the call"

AT_TOP: Mapping[str, str] = {
    "run_functions_eagerly": _EAGER,
    "functions_run_eagerly": _EAGER,
    "experimental_run_functions_eagerly": _EAGER,
    "experimental_functions_run_eagerly": _EAGER,
    "experimental_connect_to_cluster": _CLUSTER,
    "experimental_connect_to_host": _CLUSTER,
}
EXPERIMENTAL: Mapping[str, str] = {
    "ClusterDeviceFilters": _CLUSTER,
    "disable_mlir_bridge": _MLIR,
    "enable_mlir_bridge": _MLIR,
    "enable_op_determinism": (
        "kernels give the same bits for the same seeds, operands and number of "
        "threads; call memcfg.nn.set_random_seed instead"
    ),
    "enable_tensor_float_32_execution": _TF32,
    "tensor_float_32_execution_enabled": _TF32,
}


def explain(names: Mapping[str, str], name: str) -> str:
    """Return why a name of tf.config is not here; empty for other names."""
    return f", which tf.config has: {names[name]}" if name in names else ""
