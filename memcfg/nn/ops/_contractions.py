"""Products that sum over axes, all made of `matmul`."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from memcfg.nn._argument_checks import integer
from memcfg.nn.layers import SymbolicTensor
from memcfg.nn.layers._layer import named_operation
from memcfg.nn.layers._operators import Function, Matmul, as_tensor
from memcfg.nn.ops._along_axes import mean
from memcfg.nn.ops._along_axes import sum as sum_of
from memcfg.nn.ops._declaring import (
    aligned,
    as_float,
    axis_of,
    documented,
    lengths_of,
    reordered,
    reshaped,
)
from memcfg.nn.ops._of_elements import divide, multiply, sqrt, square
from memcfg.nn.ops._shapes import (
    concatenate,
    diagonal,
    expand_dims,
    moveaxis,
    pad,
    part,
    transpose,
    vector_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


__all__ = [
    "cdist",
    "corrcoef",
    "correlate",
    "cross",
    "dot",
    "einsum",
    "inner",
    "kron",
    "matmul",
    "outer",
    "tensordot",
    "vdot",
]


def _pair(name: str, x1: Any, x2: Any) -> tuple[SymbolicTensor, SymbolicTensor]:
    if not isinstance(x1, SymbolicTensor) and not isinstance(x2, SymbolicTensor):
        raise TypeError(f"{name} needs a symbolic tensor, got {x1!r} and {x2!r}")
    return as_tensor(x1, name), as_tensor(x2, name)


@documented
def matmul(x1: Any, x2: Any) -> Any:
    """Return the matrix product over the last two axes; vectors are rows or columns."""
    a, b = _pair("matmul", x1, x2)
    ends = len(a.shape) == 1, len(b.shape) == 1
    if (ends[0] and not a.whole) or (ends[1] and not b.whole):
        raise ValueError(f"matmul: {a!r} and {b!r}: a batch of numbers is no vector")
    a = expand_dims(a, 0) if ends[0] else a
    b = expand_dims(b, 1) if ends[1] else b
    result = _multiplied(a, b)
    rank = len(result.shape)
    gone = [rank - 2] * ends[0] + [rank - 1] * ends[1]
    lengths = [n for place, n in enumerate(lengths_of(result)) if place not in gone]
    return reshaped(result, lengths)


def _multiplied(a: Any, b: Any) -> Any:
    """Return the product of matrices with the leading axes broadcast."""
    if len(a.shape) < 2 or len(b.shape) < 2 or a.shape[-1] != b.shape[-2]:
        raise ValueError(
            f"matmul: shapes {a.shape} and {b.shape}: the last axis of the first must "
            "be as long as the last but one of the second"
        )
    if a.whole and b.whole and len(a.shape) == len(b.shape) == 2:
        return Matmul()([a, b])
    if len(b.shape) == 2 and b.whole:
        return Matmul()([a, b])
    if len(a.shape) == 2 and a.whole:  # one matrix for all, from the left
        order = [*range(len(b.shape) - 2), len(b.shape) - 1, len(b.shape) - 2]
        return reordered(Matmul()([reordered(b, order), reordered(a, [1, 0])]), order)
    if not (a.whole or b.whole or len(a.shape) == len(b.shape)):
        raise ValueError(
            f"matmul: {a!r} and {b!r} must have the same rank: add an axis, as in "
            "h[:, None]"
        )
    a, b = _for_each_sample(a, b), _for_each_sample(b, a)
    rank = max(len(a.shape), len(b.shape))
    both = [lengths_of(x) for x in (a, b)]
    both = [[1] * (rank - len(each)) + each for each in both]
    lead = []
    for m, n in zip(both[0][:-2], both[1][:-2], strict=True):
        if m != n and 1 not in (m, n):
            raise ValueError(
                f"matmul: leading axes of {a.shape} and {b.shape} cannot be broadcast"
            )
        lead.append(n if m == 1 else m)
    return Matmul()([_widened(x, lead, n) for x, n in zip((a, b), both, strict=True)])


def _for_each_sample(x: Any, like: Any) -> Any:
    """Return x with a batch, and with the rank of another one that has a batch."""
    if not x.whole or like.whole:
        return x
    lengths, rank = lengths_of(x), len(like.shape)
    if len(lengths) >= rank:
        if len(lengths) > rank or lengths[0] != 1:
            raise ValueError(
                f"matmul: {x!r} has no batch, and more axes than a sample of {like!r}"
            )
        x = reshaped(x, lengths[1:])
    lengths = lengths_of(aligned(x, like))
    missing = rank - len(lengths)
    return reshaped(aligned(x, like), [None, *[1] * missing, *lengths[1:]])


def _widened(x: Any, lead: Sequence[Any], lengths: Sequence[Any]) -> Any:
    wide = [*lead, *lengths[-2:]]
    x = reshaped(x, lengths)
    if wide == list(lengths):
        return x
    return Function("broadcast_to", {"shape": tuple(wide)})(x)


@documented
def dot(x1: Any, x2: Any) -> Any:
    """Return the sums of products over the last axis of x1 and the last but one of x2.

    Vectors have one axis; a number multiplies all elements.
    """
    a, b = _pair("dot", x1, x2)
    if not a.shape or not b.shape:
        return multiply(a, b)
    if len(b.shape) <= 2:
        return matmul(a, b) if b.whole or len(b.shape) == 1 else tensordot(a, b, 1)
    return tensordot(a, b, ([-1], [-2]))


@documented
def vdot(x1: Any, x2: Any) -> Any:
    """Return the sum of the products of all elements, without a batch."""
    a, b = _pair("vdot", x1, x2)
    return sum_of(multiply(vector_of(a), vector_of(b)))


@documented
def inner(x1: Any, x2: Any) -> Any:
    """Return the sums of products over the last axes of both."""
    a, b = _pair("inner", x1, x2)
    if not a.shape or not b.shape:
        return multiply(a, b)
    return tensordot(a, b, ([-1], [-1]))


@documented
def outer(x1: Any, x2: Any) -> Any:
    """Return the products of each element of x1 with each of x2, without a batch."""
    a, b = _pair("outer", x1, x2)
    return multiply(expand_dims(vector_of(a), 1), expand_dims(vector_of(b), 0))


@documented
def tensordot(x1: Any, x2: Any, axes: Any = 2) -> Any:
    """Return the sums of products over pairs of axes; the batch is of one of both."""
    a, b = _pair("tensordot", x1, x2)
    if not isinstance(axes, list | tuple):
        count = integer(axes, "tensordot: axes", 0)
        first = range(len(a.shape) - count, len(a.shape))
        axes = (list(first), list(range(count)))
    pairs = [each if isinstance(each, list | tuple) else [each] for each in axes]
    if len(pairs) != 2 or len(pairs[0]) != len(pairs[1]):
        raise ValueError(f"tensordot: axes {axes} must be as many of both tensors")
    if not (a.whole or b.whole):
        raise ValueError(
            "tensordot combines each sample with all others: use ops.einsum with the "
            "batch in both terms, or ops.matmul"
        )
    letters = iter("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    left = [next(letters) for _ in a.shape]
    right = [next(letters) for _ in b.shape]
    summed = set()
    for i, j in zip(*pairs, strict=True):
        right[axis_of(b, j)] = left[axis_of(a, i)]
        summed.add(left[axis_of(a, i)])
    kept = [each for each in (*left, *right) if each not in summed]
    if not b.whole and kept and kept[0] != right[0]:
        raise ValueError(
            f"tensordot: the batch of {b!r} would not be first: use ops.einsum"
        )
    return einsum(f"{''.join(left)},{''.join(right)}->{''.join(kept)}", a, b)


@named_operation
def einsum(subscripts: str, *operands: Any) -> Any:
    """Return sums of products by Einstein's convention, such as ``"bij,jk->bik"``.

    Parameters
    ----------
    subscripts : str
        The axes of each operand and of the result, a letter for each; ``...`` stands
        for axes that all have. The batch is first in its operands and in the result.
    *operands : SymbolicTensor or array_like
        The operands, of which one is symbolic.

    Returns
    -------
    SymbolicTensor
        The result.

    Raises
    ------
    ValueError
        If the subscripts do not fit the operands, or the batch is not first.
    """
    if not any(isinstance(each, SymbolicTensor) for each in operands):
        raise TypeError("einsum needs a symbolic tensor among its operands")
    tensors = [as_tensor(each, "einsum") for each in operands]
    terms, result = _terms(subscripts, tensors)
    made: list[tuple[str, Any]] = []
    for term, x in zip(terms, tensors, strict=True):
        made.append(_without_repeats(term, x))
    while len(made) > 1:
        (a, x), (b, y), *rest = made
        later = {*result, *(letter for term, _ in rest for letter in term)}
        kept = [each for each in dict.fromkeys(a + b) if each in later]
        made = [_contracted(a, x, b, y, kept), *rest]
    ((term, x),) = made
    gone = [place for place, each in enumerate(term) if each not in result]
    if gone:
        x = sum_of(x, tuple(gone))
        term = "".join(each for each in term if each in result)
    if sorted(term) != sorted(result):
        raise ValueError(f"einsum: the result of {subscripts!r} has unknown axes")
    if not x.whole and term[:1] != result[:1]:
        raise ValueError(f"einsum: the batch must be first in the result: {subscripts}")
    return reordered(x, [term.index(each) for each in result])


_OTHERS = "αβγδεζηθικλμ"  # letters of the axes that ``...`` stands for


def _terms(subscripts: str, tensors: Sequence[Any]) -> tuple[list[str], str]:
    """Return the letters of each operand and of the result, without ``...``."""
    left, arrow, result = subscripts.replace(" ", "").partition("->")
    terms, most = left.split(","), 0
    if len(terms) != len(tensors):
        raise ValueError(f"einsum: {subscripts!r} is not of {len(tensors)} operands")
    for i, (term, x) in enumerate(zip(terms, tensors, strict=True)):
        if "..." in term:
            count = len(x.shape) - len(term) + 3
            most = max(most, count)
            others = _OTHERS[len(_OTHERS) - count :] if count else ""
            terms[i] = term.replace("...", others)
        if len(terms[i]) != len(x.shape):
            raise ValueError(f"einsum: {term!r} of {subscripts!r} is not of {x!r}")
    others = _OTHERS[len(_OTHERS) - most :] if most else ""
    if not arrow:
        letters = "".join(terms)
        once = sorted(
            each for each in {*letters} - {*others} if letters.count(each) == 1
        )
        result = "..." + "".join(once) if most else "".join(once)
    result = result.replace("...", others)
    _check_lengths(subscripts, terms, tensors)
    if len({*result}) < len(result) or {*result} - {*"".join(terms)}:
        raise ValueError(f"einsum: the result of {subscripts!r} is not of its operands")
    return terms, result


def _check_lengths(subscripts: str, terms: Sequence[str], tensors: Any) -> None:
    """Raise ValueError if axes of one letter have different lengths."""
    known: dict[str, Any] = {}
    for term, x in zip(terms, tensors, strict=True):
        for letter, length in zip(term, lengths_of(x), strict=True):
            if known.setdefault(letter, length) != length:
                first = known[letter] or "the batch"
                raise ValueError(
                    f"einsum: axis {letter!r} of {subscripts!r} has lengths "
                    f"{first} and {length or 'the batch'}"
                )


def _without_repeats(term: str, x: Any) -> tuple[str, Any]:
    """Return the diagonals of axes that have the same letter."""
    for letter in dict.fromkeys(term):
        while term.count(letter) > 1:
            first = term.index(letter)
            second = term.index(letter, first + 1)
            x = diagonal(x, 0, first, second)
            rest = [each for i, each in enumerate(term) if i not in (first, second)]
            term = "".join([*rest, letter])
    return term, x


def _contracted(a: str, x: Any, b: str, y: Any, kept: Sequence[str]) -> tuple[str, Any]:
    """Return the product of two operands, summed over what is not kept."""
    if x.whole and not y.whole:
        a, x, b, y = b, y, a, x
    if not x.whole and not y.whole and a[0] != b[0]:
        raise ValueError("einsum: all operands with a batch must have it first")
    a, x = _summed_alone(a, x, b, kept)
    b, y = _summed_alone(b, y, a, kept)
    shared = [each for each in a if each in b and each in kept]
    if shared and y.whole and not x.whole:
        b, y = a[0] + b, aligned(y, x)
        shared = [a[0], *shared]
    summed = [each for each in a if each in b and each not in shared]
    own = [each for each in a if each not in b]
    others = [each for each in b if each not in a]
    lengths = dict(zip(a, lengths_of(x), strict=True))
    lengths |= zip(b, lengths_of(y), strict=True)

    def count(letters: Sequence[str]) -> int:
        return prod(lengths[each] for each in letters)

    x = reordered(x, [a.index(each) for each in (*shared, *own, *summed)])
    y = reordered(y, [b.index(each) for each in (*shared, *summed, *others)])
    term = "".join([*shared, *own, *others])
    if not (summed or own or others):
        return term, multiply(x, y)
    lead = [lengths[each] for each in shared]
    rows = [None, count(own[1:])] if not x.whole and not shared else [count(own)]
    x = reshaped(x, [*lead, *rows, count(summed)])
    y = reshaped(y, [*lead, count(summed), count(others)])
    return term, reshaped(Matmul()([x, y]), [lengths[each] for each in term])


def _summed_alone(
    term: str, x: Any, other: str, kept: Sequence[str]
) -> tuple[str, Any]:
    """Return the sum over axes that neither the other operand nor the result has."""
    gone = [i for i, each in enumerate(term) if each not in other and each not in kept]
    if not gone:
        return term, x
    left = "".join(each for i, each in enumerate(term) if i not in gone)
    return left, sum_of(x, tuple(gone))


@documented
def kron(x1: Any, x2: Any) -> Any:
    """Return the Kronecker product of two tensors of the same rank, without a batch."""
    a, b = _pair("kron", x1, x2)
    if len(a.shape) != len(b.shape) or not (a.whole and b.whole):
        raise ValueError(
            f"kron: {a!r} and {b!r} must have the same rank and no batch: use "
            "ops.einsum and ops.reshape"
        )
    wide = [n for length in a.shape for n in (length, 1)]
    high = [n for length in b.shape for n in (1, length)]
    both = multiply(reshaped(a, wide), reshaped(b, high))
    return reshaped(
        both, [m * n for m, n in zip(lengths_of(a), lengths_of(b), strict=True)]
    )


@documented
def cross(
    x1: Any,
    x2: Any,
    axisa: int = -1,
    axisb: int = -1,
    axisc: int = -1,
    axis: int | None = None,
) -> Any:
    """Return the cross products of vectors of 3 elements, or 2 for both."""
    a, b = _pair("cross", x1, x2)
    if axis is not None:
        axisa = axisb = axisc = axis
    a, b = moveaxis(a, axisa, -1), moveaxis(b, axisb, -1)
    lengths = a.shape[-1], b.shape[-1]
    if lengths not in ((3, 3), (2, 2), (2, 3), (3, 2)):
        raise ValueError(f"cross: vectors have 2 or 3 elements, got {lengths}")
    if lengths == (2, 2):
        return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]
    a, b = (_of_three(each) for each in (a, b))
    ahead, behind = [1, 2, 0], [2, 0, 1]
    parts = [
        a[..., i : i + 1] * b[..., j : j + 1] - a[..., j : j + 1] * b[..., i : i + 1]
        for i, j in zip(ahead, behind, strict=True)
    ]
    result = concatenate(parts, len(parts[0].shape) - 1)
    return moveaxis(result, -1, axisc) if axisc != -1 else result


def _of_three(x: Any) -> Any:
    if x.shape[-1] == 3:
        return x
    return pad(x, [(0, 0)] * (len(x.shape) - 1) + [(0, 1)])


@documented
def cdist(x: Any, y: Any) -> Any:
    """Return the Euclidean distances between the rows of two tensors."""
    a, b = _pair("cdist", x, y)
    a = expand_dims(a, len(a.shape) - 1)
    b = expand_dims(b, len(b.shape) - 2)
    return sqrt(sum_of(square(a - b), len(a.shape) - 1))


@documented
def corrcoef(x: Any) -> Any:
    """Return the correlations of the rows of a matrix without a batch."""
    x = as_tensor(x, "corrcoef")
    if len(x.shape) != 2 or not x.whole:
        raise ValueError(
            f"corrcoef is of a matrix without a batch, got {x!r}: a batch would be "
            "combined with itself"
        )
    apart = x - mean(x, 1, keepdims=True)
    products = matmul(apart, transpose(apart))
    scale = sqrt(sum_of(square(apart), 1, keepdims=True))
    return divide(products, multiply(scale, transpose(scale)))


@documented
def correlate(x1: Any, x2: Any, mode: str = "valid") -> Any:
    """Return the cross-correlation of two vectors without a batch."""
    a, b = (as_float(each) for each in _pair("correlate", x1, x2))
    if len(a.shape) != 1 or len(b.shape) != 1 or not (a.whole and b.whole):
        raise ValueError(
            f"correlate is of vectors without a batch, got {a!r} and {b!r}: use the "
            "layer Conv1D"
        )
    n, m = lengths_of(a)[0], lengths_of(b)[0]
    if mode not in ("valid", "same", "full"):
        raise ValueError(
            f"correlate: mode must be 'valid', 'same' or 'full', got {mode!r}"
        )
    around = {"valid": 0, "same": m // 2, "full": m - 1}[mode]
    count = {"valid": n - m + 1, "same": max(n, m), "full": n + m - 1}[mode]
    if m > n:
        raise ValueError(f"correlate: x1 has {n} elements, fewer than x2 with {m}")
    a = pad(a, [(around, m)])
    rows = [part(a, 0, i, i + count) for i in range(m)]
    windows = concatenate([expand_dims(each, 0) for each in rows], 0)
    return matmul(expand_dims(b, 0), windows)[0]
