"""Names of tf.config that have no meaning here, and what to do instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg._missing import by_name, instead

if TYPE_CHECKING:
    from collections.abc import Mapping

_CLUSTER = "memcfg runs in one process; remove the call"

AT_TOP = by_name(
    {
        "run_functions_eagerly functions_run_eagerly "
        "experimental_run_functions_eagerly experimental_functions_run_eagerly": (
            "every step is one static graph and runs as such; remove the call"
        ),
        "experimental_connect_to_cluster experimental_connect_to_host": _CLUSTER,
    }
)
EXPERIMENTAL = by_name(
    {
        "ClusterDeviceFilters": _CLUSTER,
        "disable_mlir_bridge enable_mlir_bridge": (
            "memcfg has no MLIR bridge; remove the call"
        ),
        "enable_op_determinism": (
            "kernels give the same bits for the same seeds, operands and number of "
            "threads; call memcfg.nn.set_random_seed instead"
        ),
        "enable_tensor_float_32_execution tensor_float_32_execution_enabled": (
            "kernels compute in full float32, unless MEMCFG_CUDA_TF32=1 asks for "
            "products in TF32 on a GPU; remove the call"
        ),
    }
)


def explain(names: Mapping[str, str], name: str) -> str:
    """Return why a name of tf.config is not here; empty for other names."""
    why = instead(names, name)
    return "" if why is None else f", which tf.config has: {why}"
