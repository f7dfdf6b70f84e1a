"""TensorFlow's graph optimizer settings, stored only.

Graphs are planned by policies (``memcfg.plan``) instead.
"""

from __future__ import annotations

from collections.abc import Mapping

from memcfg.config._registry import registry

__all__ = ["get_experimental_options", "get_jit", "set_experimental_options", "set_jit"]

_JIT = "autoclustering"
_SWITCHES = frozenset(
    {
        "layout_optimizer",
        "constant_folding",
        "shape_optimization",
        "remapping",
        "arithmetic_optimization",
        "dependency_optimization",
        "loop_optimization",
        "function_optimization",
        "debug_stripper",
        "scoped_allocator_optimization",
        "pin_to_host_optimization",
        "implementation_selector",
        "auto_mixed_precision",
        "auto_mixed_precision_mkl",
        "auto_mixed_precision_onednn_bfloat16",
        "use_plugin_optimizers",
        "auto_parallel",
    }
)
_OFF_BY_DEFAULT = ("disable_model_pruning", "disable_meta_optimizer")
_COUNT = "min_graph_nodes"


def get_jit() -> str:
    """Return ``"autoclustering"`` if that was set, or ``""``. Stored only."""
    return _JIT if registry.options.jit else ""


def set_jit(enabled: bool | str) -> None:
    """Enable just-in-time compilation. Stored only: memcfg has none.

    Parameters
    ----------
    enabled : bool or str
        ``"autoclustering"`` or True; False or ``""``. It can be changed at any time.

    Raises
    ------
    ValueError
        If it is none of these.
    """
    if not isinstance(enabled, bool | str) or enabled not in (True, False, _JIT, ""):
        raise ValueError(f"jit is {_JIT!r}, True, False or '', not {enabled!r}")
    registry.options.jit = enabled in (True, _JIT)


def get_experimental_options() -> dict[str, bool | int]:
    """Return the options that were set. Stored only.

    Returns
    -------
    dict of str to bool or int
        A new dict; the ``disable_…`` options are False unless they were set, others
        are left out.
    """
    return dict.fromkeys(_OFF_BY_DEFAULT, False) | registry.options.optimizer


def set_experimental_options(options: Mapping[str, bool | int | None]) -> None:
    """Set options of TensorFlow's graph optimizer. Stored only.

    memcfg's graphs are planned, not rewritten, so they have no effect.

    Parameters
    ----------
    options : mapping of str to bool, int or None
        TensorFlow's keys, such as ``"constant_folding"``; bools, for
        ``"min_graph_nodes"`` an int. Merged with earlier options; None removes an
        option. It can be changed at any time.

    Raises
    ------
    TypeError
        If `options` is not a mapping, or a value is not of its key's type.
    ValueError
        If a key is unknown. Nothing is set then.
    """
    if not isinstance(options, Mapping):
        raise TypeError(f"options is a mapping of names to values, not {options!r}")
    for key, value in options.items():
        _check(key, value)
    with registry.lock:
        merged = registry.options.optimizer | dict(options)
        registry.options.optimizer = {
            key: value for key, value in merged.items() if value is not None
        }


def _check(key: str, value: object) -> None:
    if key == _COUNT:
        right = isinstance(value, int | None) and not isinstance(value, bool)
    elif key in _SWITCHES or key in _OFF_BY_DEFAULT:
        right = isinstance(value, bool | None)
    else:
        raise ValueError(
            f"unknown option {key!r}; there are: "
            + ", ".join(sorted({*_SWITCHES, *_OFF_BY_DEFAULT, _COUNT}))
        )
    if not right:
        kind = "an int" if key == _COUNT else "True, False"
        raise TypeError(f"{key} is {kind} or None, not {value!r}")
