"""Op types: shapes, dtypes, gradients, in-place pairs, cost and NumPy meaning.

Owns the record `OpType`, the table of all types, and the families, one module each,
that fill it; every module here without a leading underscore is a family.
An element-wise op is one expression (`elementwise`), made of operators and of the
functions here. Users register their own ops with the same functions. Graphs and devices
are out of scope: an op type knows only its operands.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from memcfg.ops._encoded_totals import EncodedTotals
from memcfg.ops._expression import (
    Expression,
    atan,
    cos,
    equal,
    erf,
    exp,
    expm1,
    floor,
    fmod,
    log,
    log1p,
    maximum,
    minimum,
    rounded,
    select,
    sigmoid,
    sin,
    sqrt,
    tanh,
)
from memcfg.ops._formula import elementwise
from memcfg.ops._groups import Communicator, add_group, group_of
from memcfg.ops._op_type import (
    UNIT,
    Adjoint,
    Composite,
    OpType,
    Part,
    Spec,
    Value,
    op_type,
    op_types,
    register,
    unregister,
)
from memcfg.ops._section_registry import Source, add_source, source_of

__all__ = [
    "UNIT",
    "Adjoint",
    "Communicator",
    "Composite",
    "EncodedTotals",
    "Expression",
    "OpType",
    "Part",
    "Source",
    "Spec",
    "Value",
    "add_group",
    "add_source",
    "atan",
    "cos",
    "elementwise",
    "equal",
    "erf",
    "exp",
    "expm1",
    "floor",
    "fmod",
    "group_of",
    "log",
    "log1p",
    "maximum",
    "minimum",
    "op_type",
    "op_types",
    "register",
    "rounded",
    "select",
    "sigmoid",
    "sin",
    "source_of",
    "sqrt",
    "tanh",
    "unregister",
]

for _module in iter_modules(__path__):
    if not _module.name.startswith("_"):
        import_module(f"{__name__}.{_module.name}")
