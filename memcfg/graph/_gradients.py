"""Reverse-mode differentiation: the backward ops of a traced forward pass.

Griewank & Walther, "Evaluating Derivatives", SIAM 2008, ch. 3. Contributions to
one tensor are summed as soon as the second exists, so at most two are live.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.errors import GraphError
from memcfg.ops import UNIT, Adjoint, OpType, op_type

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.graph._builder import Builder, Rule
    from memcfg.graph._graph import Op

__all__ = ["gradients"]


def gradients(builder: Builder, loss: int, wrt: Sequence[int]) -> dict[int, int]:
    """Append the backward ops of a scalar loss.

    Parameters
    ----------
    builder : Builder
        The builder with the forward pass.
    loss : int
        Id of a scalar that a loss op produces.
    wrt : sequence of int
        Ids of the tensors to differentiate with respect to.

    Returns
    -------
    dict of int to int
        Maps the id of a tensor to the id of its gradient. Tensors on which the loss
        does not depend are omitted.

    Raises
    ------
    GraphError
        If the loss is not a scalar produced by an op, or an op between the tensors and
        the loss has no gradient.
    """
    forward = builder.ops
    if builder.shape(loss) != () or not any(loss in op.outputs for op in forward):
        raise GraphError("the loss must be a scalar produced by an op")
    maker = builder.maker(loss)
    if maker is not None and maker.phase == "forward":
        builder.note_loss(loss)
    gradients_of: dict[int, int] = {loss: UNIT}
    _reverse(builder, forward, _dependents(forward, wrt), gradients_of)
    gradients_of.pop(loss)
    return {
        each: _tensor(builder, each, gradients_of[each])
        for each in wrt
        if each in gradients_of
    }


def _reverse(
    builder: Builder, ops: Sequence[Op], depends: set[int], gradients_of: dict[int, int]
) -> None:
    """Append the backward ops of those through which the gradients reach `depends`."""
    for op in reversed(ops):
        rule = builder.rules.get(op.outputs[0])
        if rule is not None:
            if op.outputs[0] == rule.outputs[0]:  # the gradients of all are known
                _apply_rule(builder, rule, depends, gradients_of)
            continue
        reached = not gradients_of.keys().isdisjoint(op.outputs)
        if op.phase == "update":  # what it makes is a constant, see `_dependents`
            continue
        if reached and not depends.isdisjoint(op.inputs):
            _differentiate(builder, op, depends, gradients_of)


def _dependents(ops: Sequence[Op], wrt: Sequence[int]) -> set[int]:
    """Return the tensors made from `wrt`; state is a constant once it is updated."""
    depends = set(wrt)
    for op in ops:
        if op.phase != "update" and depends.intersection(op.inputs):
            depends.update(op.outputs)
    return depends


def _differentiate(
    builder: Builder, op: Op, depends: set[int], gradients_of: dict[int, int]
) -> None:
    kind = op_type(op.type)
    if kind.gradient is None and kind.parts is None:
        raise GraphError(
            f"op {op.name!r} of type {op.type!r} has no gradient: pass gradient to its "
            "OpType"
        )
    adjoint = Adjoint(
        builder,
        op.name,
        op.inputs,
        op.outputs,
        op.attributes,
        tuple([_gradient_of(builder, op, t, gradients_of) for t in op.outputs]),
        tuple(map(depends.__contains__, op.inputs)),
    )
    before, builder.group = builder.group, op.group
    if kind.gradient is None:
        partial = _of_parts(builder, kind, adjoint)
    else:
        partial = kind.gradient(adjoint)
    builder.group = ""  # a sum of gradients belongs to no group
    for tensor, gradient in zip(op.inputs, partial, strict=True):
        if gradient is not None and tensor in depends:
            _accumulate(builder, tensor, gradient, gradients_of)
    builder.group = before


def _apply_rule(
    builder: Builder, rule: Rule, depends: set[int], gradients_of: dict[int, int]
) -> None:
    """Append what a rule of the builder makes of the gradients of its outputs."""
    if gradients_of.keys().isdisjoint(rule.outputs) or depends.isdisjoint(rule.inputs):
        return
    given = []
    for each in rule.outputs:
        gradient = gradients_of.get(each)
        if gradient is None:
            dtype = builder.dtype(each)
            zeros = {"shape": builder.shape(each), "value": 0.0, "dtype": dtype}
            (gradient,) = builder.apply("fill", (), zeros, phase="backward")
        given.append(_tensor(builder, each, gradient))
    for tensor, gradient in zip(rule.inputs, rule.call(given), strict=True):
        if gradient is not None and tensor in depends:
            _accumulate(builder, tensor, gradient, gradients_of)


def _of_parts(builder: Builder, kind: OpType, adjoint: Adjoint) -> Sequence[int | None]:
    """Return the gradients of an op's inputs, as those of the ops it consists of."""
    begin = len(builder.ops)
    assert kind.parts is not None
    outputs = kind.parts(adjoint)
    parts = builder.ops[begin:]
    gradients_of: dict[int, int] = {}
    for output, dy in zip(outputs, adjoint.dys, strict=True):
        if output is not None and dy is not None:
            _accumulate(builder, output, dy, gradients_of)
    wrt = {t for t, need in zip(adjoint.inputs, adjoint.needs, strict=True) if need}
    _reverse(builder, parts, _dependents(parts, list(wrt)), gradients_of)
    return [gradients_of.pop(each, None) for each in adjoint.inputs]


def _gradient_of(
    builder: Builder, op: Op, tensor: int, gradients_of: dict[int, int]
) -> int | None:
    """Return the gradient of an output, cast to its dtype unless the op is a cast."""
    gradient = gradients_of.get(tensor)
    if gradient in (None, UNIT) or op.type == "cast":
        return gradient
    return builder.cast(gradient, builder.dtype(tensor), phase="backward")


def _accumulate(
    builder: Builder, tensor: int, gradient: int, gradients_of: dict[int, int]
) -> None:
    if tensor in gradients_of:
        terms = [
            _tensor(builder, tensor, each) for each in (gradients_of[tensor], gradient)
        ]
        dtypes = {builder.dtype(each) for each in terms}
        if len(dtypes) > 1:  # sum in float32, the more precise of the two
            terms = [builder.cast(each, "float32", phase="backward") for each in terms]
        (gradient,) = builder.apply("add", terms, name="gradient_sum", phase="backward")
    gradients_of[tensor] = gradient


def _tensor(builder: Builder, tensor: int, gradient: int) -> int:
    """Return the id of a gradient; for the constant `UNIT`, append a `fill` op."""
    if gradient != UNIT:
        return gradient
    one = {"shape": (), "value": 1.0, "dtype": builder.dtype(tensor)}
    return builder.apply("fill", (), one, name="gradient_one", phase="backward")[0]
