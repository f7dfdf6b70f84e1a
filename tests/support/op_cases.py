"""Cases of Keras's ops: what to compute with a module of ops, and what NumPy gives."""

from __future__ import annotations

import math
import warnings
from statistics import NormalDist

import numpy as np

erf = np.vectorize(math.erf, otypes=[float])
erfc = np.vectorize(math.erfc, otypes=[float])


@np.vectorize
def erfinv(x):
    if not abs(x) < 1:
        return x * math.inf if abs(x) == 1 else math.nan
    return NormalDist().inv_cdf((x + 1) / 2) / math.sqrt(2) if x else x


GAMMA = np.float32([0.5, 1, 2, 0.25])
KERNEL = np.random.default_rng(4).normal(size=(2, 4, 3)).astype("f4")


def logsumexp(x, axis):
    most = x.max(axis, keepdims=True)
    return np.log(np.exp(x - most).sum(axis)) + most.squeeze(axis)


# Of one tensor above 0.5 and below 1.5: the name in Keras, and NumPy's function.
OF_ONE = {
    **{
        name: getattr(np, name)
        for name in (
            *("sin", "cos", "tan", "arctan", "sinh", "cosh", "arcsinh", "sinc"),
            *("floor", "ceil", "trunc", "round", "sign", "signbit", "expm1", "exp2"),
            *("log2", "log10", "cbrt", "i0", "isnan", "isinf", "isfinite", "deg2rad"),
            *("rad2deg", "nan_to_num", "isposinf", "isneginf", "real", "imag"),
            *("conj", "angle", "isreal", "fabs", "logical_not", "zeros_like"),
            *("ones_like", "fliplr"),
        )
    },
    "erf": erf,
    "erfc": erfc,
    "squareplus": lambda x: (x + np.sqrt(x * x + 4)) / 2,
}
# Of x and y, both between 0.5 and 1.5.
OF_TWO = {
    name: getattr(np, name)
    for name in (
        *("arctan2", "hypot", "logaddexp", "logaddexp2", "mod", "fmod", "power"),
        *("floor_divide", "logical_and", "logical_or", "logical_xor", "heaviside"),
        *("fmax", "fmin", "isclose", "cross"),
    )
    if name != "cross"
}


inv, det = np.linalg.inv, np.linalg.det


def _square(k, x):
    """Regular matrices."""
    return x[..., :3] + 2 * k.eye(3)


def _positive(k, x):
    turned = k.swapaxes(x, 1, 2)
    return k.matmul(x, turned) + k.eye(3)


def _parts(k, parts):
    """Both parts in one tensor."""
    return k.concatenate([parts[0], 0.5 * parts[1]], axis=-1)


def _whole(x, y, transform=np.fft.fft):
    made = transform(x + 1j * y)
    return np.concatenate([made.real, 0.5 * made.imag], -1)


def _stft(x):
    """Windows of 4 within 6 elements, 2 apart, of mirrored ends."""
    x = np.pad(x, ((0, 0), (3, 3)), mode="reflect")
    window = np.pad(0.5 - 0.5 * np.cos(np.pi * np.arange(4) / 2), 1)
    rows = np.stack([x[:, i : i + 6] * window for i in range(0, 13, 2)], 1)
    return _whole(rows, 0 * rows, lambda z: np.fft.rfft(z.real))


def _two(name):
    return lambda k, x, y: getattr(k, name)(x, y) + 0.0 * x


def _one(name):
    return lambda k, x, y: getattr(k, name)(x) + 0.0 * x


CASES = {
    **{name: (_one(name), lambda x, y, f=f: f(x)) for name, f in OF_ONE.items()},
    **{name: (_two(name), f) for name, f in OF_TWO.items()},
    "arcsin": (lambda k, x, y: k.arcsin(x - 1), lambda x, y: np.arcsin(x - 1)),
    "arccos": (lambda k, x, y: k.arccos(x - 1), lambda x, y: np.arccos(x - 1)),
    "arctanh": (lambda k, x, y: k.arctanh(x - 1), lambda x, y: np.arctanh(x - 1)),
    "arccosh": (lambda k, x, y: k.arccosh(x + 1), lambda x, y: np.arccosh(x + 1)),
    "erfinv": (lambda k, x, y: k.erfinv(x - 1), lambda x, y: erfinv(x - 1)),
    "round to": (
        lambda k, x, y: k.round(x, 1) * y,
        lambda x, y: np.round(x, 1) * y,
    ),
    "divide_no_nan": (
        lambda k, x, y: k.divide_no_nan(x, k.floor(y) * y),
        lambda x, y: np.where(y < 1, 0, x / np.maximum(y, 1)),
    ),
    "power of number": (lambda k, x, y: 2.0**x, lambda x, y: 2.0**x),
    "number mod": (lambda k, x, y: 5.0 % x + y % 0.3, lambda x, y: 5 % x + y % 0.3),
    "ldexp": (
        lambda k, x, y: k.ldexp(x, k.ones((3, 4))),
        lambda x, y: x * 2,
    ),
    "threshold": (
        lambda k, x, y: k.threshold(x, 1.0, 0.25),
        lambda x, y: np.where(x > 1, x, 0.25),
    ),
    "sparse_plus": (
        lambda k, x, y: k.sparse_plus(3 * x - 3),
        lambda x, y: np.where(
            x * 3 - 3 >= 1, x * 3 - 3, np.maximum(x * 3 - 2, 0) ** 2 / 4
        ),
    ),
    "sparse_sigmoid": (
        lambda k, x, y: k.sparse_sigmoid(3 * x - 3),
        lambda x, y: ((3 * x - 2) / 2).clip(0, 1),
    ),
    "stop_gradient": (lambda k, x, y: k.stop_gradient(x) * y, lambda x, y: x * y),
    "select": (
        lambda k, x, y: k.select([x > 1.2, y > 1.0], [x, 2 * y], 0 * x),
        lambda x, y: np.select([x > 1.2, y > 1.0], [x, 2 * y], 0),
    ),
    "arrays": (
        lambda k, x, y: x * k.arange(4, dtype="float32") + k.tri(3, 4),
        lambda x, y: x * np.arange(4) + np.tri(3, 4),
    ),
    # linear algebra
    "inv": (lambda k, x, y: k.inv(_square(k, x)), lambda x, y: inv(_square(np, x))),
    "det": (lambda k, x, y: k.det(_square(k, x)), lambda x, y: det(_square(np, x))),
    "logdet": (
        lambda k, x, y: k.logdet(_positive(k, x)),
        lambda x, y: np.log(det(_positive(np, x))),
    ),
    "slogdet": (
        lambda k, x, y: k.slogdet(_square(k, x))[1],
        lambda x, y: np.log(abs(det(_square(np, x)))),
    ),
    "cholesky": (
        lambda k, x, y: k.cholesky(_positive(k, x)),
        lambda x, y: np.linalg.cholesky(_positive(np, x)),
    ),
    "cholesky upper": (
        lambda k, x, y: k.cholesky(_positive(k, x), upper=True),
        lambda x, y: np.swapaxes(np.linalg.cholesky(_positive(np, x)), 1, 2),
    ),
    "cholesky_inverse": (
        lambda k, x, y: k.cholesky_inverse(k.cholesky(_positive(k, x))),
        lambda x, y: inv(_positive(np, x)),
    ),
    "solve": (
        lambda k, x, y: k.solve(_square(k, x), y),
        lambda x, y: inv(_square(np, x)) @ y,
    ),
    "solve for vectors": (
        lambda k, x, y: k.solve_triangular(_square(k, x), y[..., 0], lower=True),
        lambda x, y: (inv(np.tril(_square(np, x))) @ y[..., :1])[..., 0],
    ),
    "solve_triangular": (
        lambda k, x, y: k.solve_triangular(_square(k, x), y),
        lambda x, y: inv(np.triu(_square(np, x))) @ y,
    ),
    "pinv": (
        lambda k, x, y: k.pinv(x + 2 * k.eye(3, 4)),
        lambda x, y: np.linalg.pinv(x + 2 * np.eye(3, 4)),
    ),
    "qr": (
        lambda k, x, y: k.matmul(*k.qr(k.swapaxes(x, 1, 2))) * 2.0,
        lambda x, y: 2 * np.swapaxes(x, 1, 2),
    ),
    "r": (lambda k, x, y: k.qr(x)[1], lambda x, y: np.linalg.qr(x)[1]),
    "singular values": (
        lambda k, x, y: k.svd(x, compute_uv=False),
        lambda x, y: np.linalg.svd(x, compute_uv=False),
    ),
    "eigenvalues": (
        lambda k, x, y: k.eigh(_positive(k, x))[0],
        lambda x, y: np.linalg.eigvalsh(_positive(np, x)),
    ),
    "spectral norm": (
        lambda k, x, y: k.norm(x, 2, axis=(1, 2)) + k.norm(y, "nuc", axis=(1, 2)),
        lambda x, y: (
            np.linalg.norm(x, 2, axis=(1, 2)) + np.linalg.norm(y, "nuc", axis=(1, 2))
        ),
    ),
    # signals
    "fft": (lambda k, x, y: _parts(k, k.fft((x, y))), lambda x, y: _whole(x, y)),
    "fft2": (
        lambda k, x, y: _parts(k, k.fft2((x, y))),
        lambda x, y: _whole(x, y, np.fft.fft2),
    ),
    "ifft2": (
        lambda k, x, y: _parts(k, k.ifft2((x, y))),
        lambda x, y: _whole(x, y, np.fft.ifft2),
    ),
    "rfft": (
        lambda k, x, y: _parts(k, k.rfft(x, 5)),
        lambda x, y: _whole(x, 0 * x, lambda z: np.fft.rfft(z.real, 5)),
    ),
    "irfft": (
        lambda k, x, y: k.irfft((x, y), 5) + k.irfft((x, y))[..., :5],
        lambda x, y: np.fft.irfft(x + 1j * y, 5) + np.fft.irfft(x + 1j * y)[..., :5],
    ),
    "extract_sequences": (
        lambda k, x, y: k.extract_sequences(x, 2, 1) * 2.0,
        lambda x, y: 2 * np.stack([x[..., i : i + 2] for i in range(3)], -2),
    ),
    "stft": (
        lambda k, x, y: _parts(k, k.stft(k.reshape(x, (-1, 12)), 4, 2, 6)),
        lambda x, y: _stft(x.reshape(-1, 12)),
    ),
    "unfold": (
        lambda k, x, y: k.unfold(k.expand_dims(x, 1), 2, stride=(1, 2)) * 1.0,
        lambda x, y: np.stack(
            [
                x[:, i : i + 2, j : j + 2].reshape(-1, 4)
                for i in range(2)
                for j in (0, 2)
            ],
            -1,
        ),
    ),
    # reductions
    "prod": (lambda k, x, y: k.prod(x, axis=(1, 2)), lambda x, y: x.prod((1, 2))),
    "prod of 3": (
        lambda k, x, y: k.prod(x, axis=1, keepdims=True) * y,
        lambda x, y: x.prod(1, keepdims=True) * y,
    ),
    "any": (
        lambda k, x, y: k.where(k.any(x > 1.2, axis=-1), x[..., 0], 2 * y[..., 1]),
        lambda x, y: np.where((x > 1.2).any(-1), x[..., 0], 2 * y[..., 1]),
    ),
    "all": (
        lambda k, x, y: k.where(k.all(x > 0.7, axis=-1), x[..., 0], 2 * y[..., 1]),
        lambda x, y: np.where((x > 0.7).all(-1), x[..., 0], 2 * y[..., 1]),
    ),
    "count_nonzero": (
        lambda k, x, y: (
            k.cast(k.count_nonzero(k.floor(x), axis=1), "float32") * y[:, 0]
        ),
        lambda x, y: (x >= 1).sum(1) * y[:, 0],
    ),
    "argmax": (
        lambda k, x, y: k.cast(k.argmax(x, axis=-1), "float32") * y[..., 0],
        lambda x, y: x.argmax(-1) * y[..., 0],
    ),
    "argmin": (
        lambda k, x, y: k.cast(k.argmin(k.floor(x), axis=1), "float32") * y[:, 0],
        lambda x, y: np.floor(x).argmin(1) * y[:, 0],
    ),
    "ptp": (lambda k, x, y: k.ptp(x, axis=-1), lambda x, y: np.ptp(x, -1)),
    "logsumexp": (
        lambda k, x, y: k.logsumexp(30 * x, axis=-1),
        lambda x, y: logsumexp(30 * x, -1),
    ),
    "average": (
        lambda k, x, y: k.average(x, axis=-1, weights=y),
        lambda x, y: np.average(x, -1, y),
    ),
    "moments": (
        lambda k, x, y: k.add(*k.moments(x, (1, 2))),
        lambda x, y: x.mean((1, 2)) + x.var((1, 2)),
    ),
    **{
        f"norm {order}": (
            lambda k, x, y, o=order: k.norm(x - 1, ord=o, axis=-1),
            lambda x, y, o=order: np.linalg.norm(x - 1, o, -1),
        )
        for order in (None, 1, 2, 3, np.inf, -np.inf, 0.5)
    },
    **{
        f"norm of matrices {order}": (
            lambda k, x, y, o=order: k.norm(x - 1, ord=o, axis=(1, 2)),
            lambda x, y, o=order: np.linalg.norm(x - 1, o, (1, 2)),
        )
        for order in (None, "fro", 1, -1, np.inf, -np.inf)
    },
    "normalize": (
        lambda k, x, y: k.normalize(x, axis=-1),
        lambda x, y: x / np.linalg.norm(x, axis=-1, keepdims=True),
    ),
    "diff": (lambda k, x, y: k.diff(x, 2, axis=-1), lambda x, y: np.diff(x, 2, -1)),
    "trapezoid": (
        lambda k, x, y: k.trapezoid(x, dx=0.5, axis=1),
        lambda x, y: np.trapezoid(x, dx=0.5, axis=1),
    ),
    **{
        name: (
            lambda k, x, y, n=name: getattr(k, n)(k.where(x > 0.6, x, np.nan), axis=-1),
            lambda x, y, n=name: _quiet(getattr(np, n))(np.where(x > 0.6, x, np.nan)),
        )
        for name in ("nansum", "nanprod", "nanmax", "nanmin", "nanmean", "nanvar")
    },
    # shapes
    "tile": (lambda k, x, y: k.tile(x, (1, 2, 3)), lambda x, y: np.tile(x, (1, 2, 3))),
    "repeat": (lambda k, x, y: k.repeat(x, 2, 1), lambda x, y: np.repeat(x, 2, 1)),
    "repeat some": (
        lambda k, x, y: k.repeat(x, np.array([1, 2, 3]), 1),
        lambda x, y: np.repeat(x, [1, 2, 3], 1),
    ),
    "roll": (lambda k, x, y: k.roll(x, 3, axis=2), lambda x, y: np.roll(x, 3, 2)),
    "roll back": (
        lambda k, x, y: k.roll(x, -1, axis=1),
        lambda x, y: np.roll(x, -1, 1),
    ),
    "rot90": (
        lambda k, x, y: k.rot90(x, 1, axes=(1, 2)),
        lambda x, y: np.rot90(x, 1, (1, 2)),
    ),
    "rot270": (
        lambda k, x, y: k.rot90(x, 3, axes=(2, 1)),
        lambda x, y: np.rot90(x, 3, (2, 1)),
    ),
    "pad": (
        lambda k, x, y: k.pad(x, ((0, 0), (1, 2), (0, 3)), constant_values=2.0),
        lambda x, y: np.pad(x, ((0, 0), (1, 2), (0, 3)), constant_values=2),
    ),
    **{
        f"pad {mode}": (
            lambda k, x, y, m=mode: k.pad(x, ((0, 0), (1, 2), (2, 0)), mode=m),
            lambda x, y, m=mode: np.pad(x, ((0, 0), (1, 2), (2, 0)), mode=m),
        )
        for mode in ("reflect", "symmetric")
    },
    "broadcast_to": (
        lambda k, x, y: k.broadcast_to(x[:, :1], k.shape(x)),
        lambda x, y: np.broadcast_to(x[:, :1], x.shape),
    ),
    "array_split": (
        lambda k, x, y: k.concatenate(k.array_split(x, 3, axis=-1)[::-1], -1),
        lambda x, y: np.concatenate(np.array_split(x, 3, -1)[::-1], -1),
    ),
    "unstack": (
        lambda k, x, y: k.multiply(*k.unstack(x, axis=1)[1:]),
        lambda x, y: x[:, 1] * x[:, 2],
    ),
    "append": (
        lambda k, x, y: k.append(x, y, axis=1),
        lambda x, y: np.append(x, y, 1),
    ),
    "hstack": (lambda k, x, y: k.hstack([x, y]), lambda x, y: np.hstack([x, y])),
    "dstack": (lambda k, x, y: k.dstack([x, y]), lambda x, y: np.dstack([x, y])),
    "hsplit": (lambda k, x, y: k.hsplit(x, 3)[1], lambda x, y: x[:, 1:2]),
    "dsplit": (lambda k, x, y: k.dsplit(x, [1])[1], lambda x, y: x[..., 1:]),
    "slice_update": (
        lambda k, x, y: k.slice_update(x, (0, 1, 1), y[:, :2, :3]),
        lambda x, y: _replaced(x, y),
    ),
    "tril": (lambda k, x, y: k.tril(x, 1), lambda x, y: np.tril(x, 1)),
    "triu": (lambda k, x, y: k.triu(x, -1), lambda x, y: np.triu(x, -1)),
    "diagonal": (
        lambda k, x, y: k.diagonal(x, 1, axis1=1, axis2=2),
        lambda x, y: np.diagonal(x, 1, 1, 2),
    ),
    "trace": (
        lambda k, x, y: k.trace(x, -1, axis1=1, axis2=2),
        lambda x, y: np.trace(x, -1, 1, 2),
    ),
    "rearrange": (
        lambda k, x, y: k.rearrange(x, "b h (w c) -> b (c h) w", c=2),
        lambda x, y: x.reshape(-1, 3, 2, 2).transpose(0, 3, 1, 2).reshape(-1, 6, 2),
    ),
    "moveaxis of two": (
        lambda k, x, y: k.moveaxis(x[..., None] * y[..., None], (1, 3), (3, 1)),
        lambda x, y: (x * y)[..., None].transpose(0, 3, 2, 1),
    ),
    # products
    "einsum": (
        lambda k, x, y: k.einsum("bij,bkj->bik", x, y),
        lambda x, y: np.einsum("bij,bkj->bik", x, y),
    ),
    "einsum of a constant": (
        lambda k, x, y: k.einsum("bij,jk->bki", x, np.tri(4, 5, dtype="f4")),
        lambda x, y: np.einsum("bij,jk->bki", x, np.tri(4, 5)),
    ),
    "einsum of a constant with shared axes": (
        lambda k, x, y: k.einsum("bij,ijk->bik", x, np.ones((3, 4, 2), "f4") / 3),
        lambda x, y: np.einsum("bij,ijk->bik", x, np.ones((3, 4, 2)) / 3),
    ),
    "einsum of three": (
        lambda k, x, y: k.einsum("bij,bkj,bkl->bil", x, y, x),
        lambda x, y: np.einsum("bij,bkj,bkl->bil", x, y, x),
    ),
    "einsum with dots": (
        lambda k, x, y: k.einsum("...j,...j->...", x, y),
        lambda x, y: np.einsum("...j,...j->...", x, y),
    ),
    "einsum of products": (
        lambda k, x, y: k.einsum("bij,bij->bij", x, y),
        lambda x, y: x * y,
    ),
    "einsum of one": (
        lambda k, x, y: k.einsum("bij->bj", x),
        lambda x, y: x.sum(1),
    ),
    "einsum outer": (
        lambda k, x, y: k.einsum("bi,bj->bij", x[:, 0], y[:, :, 0]),
        lambda x, y: x[:, 0, :, None] * y[:, None, :, 0],
    ),
    "tensordot": (
        lambda k, x, y: k.tensordot(x, np.tri(3, 4, dtype="f4"), ([1, 2], [0, 1])),
        lambda x, y: np.tensordot(x, np.tri(3, 4), ([1, 2], [0, 1])),
    ),
    "dot": (
        lambda k, x, y: k.dot(x, np.tri(4, 2, dtype="f4")),
        lambda x, y: x @ np.tri(4, 2),
    ),
    "inner": (
        lambda k, x, y: k.inner(x, np.tri(2, 4, dtype="f4")),
        lambda x, y: np.inner(x, np.tri(2, 4)),
    ),
    "cross": (
        lambda k, x, y: k.cross(x[..., :3], y[..., 1:]),
        lambda x, y: np.cross(x[..., :3], y[..., 1:]),
    ),
    "matmul of a vector": (
        lambda k, x, y: k.matmul(x, np.arange(4, dtype="f4")),
        lambda x, y: x @ np.arange(4),
    ),
    "matmul from the left": (
        lambda k, x, y: k.matmul(np.tri(2, 3, dtype="f4"), x),
        lambda x, y: np.tri(2, 3) @ x,
    ),
    "cdist": (
        lambda k, x, y: k.cdist(x, y),
        lambda x, y: np.linalg.norm(x[:, :, None] - y[:, None], axis=-1),
    ),
    # sequences, order and indices
    "cumsum": (lambda k, x, y: k.cumsum(x, axis=1), lambda x, y: x.cumsum(1)),
    "cumprod": (lambda k, x, y: k.cumprod(x, axis=-1), lambda x, y: x.cumprod(-1)),
    "associative_scan": (
        lambda k, x, y: k.associative_scan(k.maximum, x, axis=2, reverse=True),
        lambda x, y: np.maximum.accumulate(x[..., ::-1], 2)[..., ::-1],
    ),
    "sort": (lambda k, x, y: k.sort(x, axis=1), lambda x, y: np.sort(x, 1)),
    "argsort": (
        lambda k, x, y: k.cast(k.argsort(x, axis=-1), "float32") * y,
        lambda x, y: x.argsort(-1) * y,
    ),
    "top_k": (
        lambda k, x, y: k.top_k(x, 2)[0] * k.cast(k.top_k(x, 2)[1], "float32"),
        lambda x, y: (-np.sort(-x, -1) * np.argsort(-x, -1))[..., :2],
    ),
    "median": (lambda k, x, y: k.median(x, axis=-1), lambda x, y: np.median(x, -1)),
    "quantile": (
        lambda k, x, y: k.quantile(x, 0.3, axis=(1, 2)),
        lambda x, y: np.quantile(x, 0.3, (1, 2)),
    ),
    "percentile": (
        lambda k, x, y: k.percentile(x, 80, axis=1, method="lower"),
        lambda x, y: np.percentile(x, 80, 1, method="lower"),
    ),
    "take of an array": (
        lambda k, x, y: k.take(x, np.array([[2, 0, 1], [1, 1, 3]]), axis=2),
        lambda x, y: x[:, :, [[2, 0, 1], [1, 1, 3]]],
    ),
    "take_along_axis": (
        lambda k, x, y: k.take_along_axis(x, k.argsort(y, axis=1), axis=1),
        lambda x, y: np.take_along_axis(x, y.argsort(1), 1),
    ),
    "searchsorted": (
        lambda k, x, y: (
            k.cast(k.searchsorted(np.array([0.6, 0.9, 1.2], "f4"), x), "float32") * y
        ),
        lambda x, y: np.searchsorted([0.6, 0.9, 1.2], x) * y,
    ),
    "digitize": (
        lambda k, x, y: (
            k.cast(k.digitize(x, np.array([0.7, 1.1], "f4")), "float32") * y
        ),
        lambda x, y: np.digitize(x, [0.7, 1.1]) * y,
    ),
    # networks; the kernel of a convolution is a part of the program
    "layer_normalization": (
        lambda k, x, y: k.layer_normalization(x, epsilon=1e-3) * y,
        lambda x, y: _standard(x, -1) * y,
    ),
    "layer_normalization with scales": (
        lambda k, x, y: k.layer_normalization(
            x, GAMMA, 2 * GAMMA, axis=-1, epsilon=1e-3
        ),
        lambda x, y: _standard(x, -1) * GAMMA + 2 * GAMMA,
    ),
    "rms_normalization": (
        lambda k, x, y: k.rms_normalization(x, GAMMA, axis=-1),
        lambda x, y: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-7) * GAMMA,
    ),
    "batch_normalization": (
        lambda k, x, y: k.batch_normalization(
            x, GAMMA, GAMMA + 1, -1, offset=GAMMA, scale=3 * GAMMA
        ),
        lambda x, y: (x - GAMMA) / np.sqrt(GAMMA + 1.001) * 3 * GAMMA + GAMMA,
    ),
    "binary_crossentropy": (
        lambda k, x, y: k.binary_crossentropy(k.floor(y), x / 2),
        lambda x, y: -np.log(np.where(y >= 1, x / 2, 1 - x / 2)),
    ),
    "binary_crossentropy of logits": (
        lambda k, x, y: k.binary_crossentropy(k.floor(y), x, from_logits=True),
        lambda x, y: np.log1p(np.exp(x)) - x * (y >= 1),
    ),
    "categorical_crossentropy": (
        lambda k, x, y: k.categorical_crossentropy(k.softmax(y), x),
        lambda x, y: _cross(_softmax(y), np.log(x / x.sum(-1, keepdims=True))),
    ),
    "categorical_crossentropy of logits": (
        lambda k, x, y: k.categorical_crossentropy(k.softmax(y), x, True),
        lambda x, y: _cross(_softmax(y), np.log(_softmax(x))),
    ),
    "sparse_categorical_crossentropy": (
        lambda k, x, y: k.sparse_categorical_crossentropy(
            k.argmax(y, axis=-1), x, from_logits=True
        ),
        lambda x, y: _cross(np.eye(4)[y.argmax(-1)], np.log(_softmax(x))),
    ),
    **{
        f"dot_product_attention {causal}": (
            lambda k, x, y, c=causal: k.dot_product_attention(
                k.reshape(x, (-1, 3, 2, 2)),
                k.reshape(y, (-1, 3, 2, 2)),
                k.reshape(x * y, (-1, 3, 2, 2)),
                is_causal=c,
            ),
            lambda x, y, c=causal: _attention(x, y, c),
        )
        for causal in (False, True)
    },
    "conv": (
        lambda k, x, y: k.conv(x, KERNEL, padding="same"),
        lambda x, y: _convolved(np.pad(x, ((0, 0), (0, 1), (0, 0)))),
    ),
    "conv of images": (
        lambda k, x, y: k.conv(k.expand_dims(x, -1), KERNEL[..., None, :], strides=1),
        lambda x, y: _convolved_images(x),
    ),
    "depthwise_conv": (
        lambda k, x, y: k.depthwise_conv(x, KERNEL[..., :1]),
        lambda x, y: x[:, :2] * KERNEL[0, :, 0] + x[:, 1:] * KERNEL[1, :, 0],
    ),
    "separable_conv": (
        lambda k, x, y: k.separable_conv(x, KERNEL[..., :1], KERNEL[:1]),
        lambda x, y: (
            (x[:, :2] * KERNEL[0, :, 0] + x[:, 1:] * KERNEL[1, :, 0]) @ KERNEL[0]
        ),
    ),
    "conv_transpose": (
        lambda k, x, y: k.conv_transpose(x, KERNEL.transpose(0, 2, 1)),
        lambda x, y: (
            np.pad(x @ KERNEL[0], ((0, 0), (0, 1), (0, 0)))
            + np.pad(x @ KERNEL[1], ((0, 0), (1, 0), (0, 0)))
        ),
    ),
    "max_pool": (
        lambda k, x, y: k.max_pool(x, 2, 1),
        lambda x, y: np.maximum(x[:, :2], x[:, 1:]),
    ),
    "average_pool": (
        lambda k, x, y: k.average_pool(x, 2, 1),
        lambda x, y: (x[:, :2] + x[:, 1:]) / 2,
    ),
    "adaptive_average_pool": (
        lambda k, x, y: k.adaptive_average_pool(x, 2),
        lambda x, y: (x[:, :2] + x[:, 1:]) / 2,
    ),
    "adaptive_max_pool": (
        lambda k, x, y: k.adaptive_max_pool(x, 2),
        lambda x, y: np.maximum(x[:, :2], x[:, 1:]),
    ),
    # activations
    "glu": (
        lambda k, x, y: k.glu(x, axis=-1),
        lambda x, y: x[..., :2] / (1 + np.exp(-x[..., 2:])),
    ),
    "sparsemax": (
        lambda k, x, y: k.sparsemax(x, axis=-1) * y,
        lambda x, y: _sparsemax(x) * y,
    ),
    # control flow that Python runs
    "fori_loop": (
        lambda k, x, y: k.fori_loop(0, 3, lambda i, v: v * y + i, x),
        lambda x, y: ((x * y) * y + 1) * y + 2,
    ),
    "cond": (
        lambda k, x, y: k.cond(len(x.shape) == 3, lambda: x * y, lambda: x),
        lambda x, y: x * y,
    ),
}


# Of an array of 3 x 4 without a batch, whose axis 0 is like any other: at once.
WHOLE = {
    "sum": (lambda k, x: k.sum(x), lambda x: x.sum()),
    "sum of axis 0": (lambda k, x: k.sum(x, 0), lambda x: x.sum(0)),
    "prod": (lambda k, x: k.prod(x), lambda x: x.prod()),
    "argmax": (lambda k, x: k.argmax(x), lambda x: x.argmax()),
    "argmin of axis 0": (lambda k, x: k.argmin(x, 0), lambda x: x.argmin(0)),
    "sort of all": (lambda k, x: k.sort(x, None), lambda x: np.sort(x, None)),
    "sort of axis 0": (lambda k, x: k.sort(x, 0), lambda x: np.sort(x, 0)),
    "median": (lambda k, x: k.median(x), lambda x: np.median(x)),
    "quantiles": (
        lambda k, x: k.quantile(x, [0.2, 0.5], axis=0),
        lambda x: np.quantile(x, [0.2, 0.5], 0),
    ),
    "cumsum": (lambda k, x: k.cumsum(x), lambda x: x.cumsum()),
    "cumprod of axis 0": (lambda k, x: k.cumprod(x, 0), lambda x: x.cumprod(0)),
    "transpose": (lambda k, x: k.transpose(x), lambda x: x.T),
    "reshape": (lambda k, x: k.reshape(x, (2, -1)), lambda x: x.reshape(2, 6)),
    "ravel": (lambda k, x: k.ravel(x), lambda x: x.ravel()),
    "squeeze": (lambda k, x: k.squeeze(x[:1]), lambda x: x[0]),
    "flip": (lambda k, x: k.flip(x), lambda x: np.flip(x)),
    "flipud": (lambda k, x: k.flipud(x), np.flipud),
    "rot90": (lambda k, x: k.rot90(x, 2), lambda x: np.rot90(x, 2)),
    "roll": (lambda k, x: k.roll(x, 5), lambda x: np.roll(x, 5)),
    "tile": (lambda k, x: k.tile(x, (2, 2, 1)), lambda x: np.tile(x, (2, 2, 1))),
    "repeat": (lambda k, x: k.repeat(x, 2), lambda x: np.repeat(x, 2)),
    "pad": (lambda k, x: k.pad(x, 1), lambda x: np.pad(x, 1)),
    "pad edge": (lambda k, x: k.pad(x, 2, "edge"), lambda x: np.pad(x, 2, "edge")),
    "pad wrap": (lambda k, x: k.pad(x, 2, "wrap"), lambda x: np.pad(x, 2, "wrap")),
    "vstack": (lambda k, x: k.vstack([x, x[0]]), lambda x: np.vstack([x, x[0]])),
    "hstack": (lambda k, x: k.hstack([x, x]), lambda x: np.hstack([x, x])),
    "dstack": (lambda k, x: k.dstack([x, x]), lambda x: np.dstack([x, x])),
    "stack": (lambda k, x: k.stack([x, x]), lambda x: np.stack([x, x])),
    "split": (lambda k, x: k.split(x, 3)[1], lambda x: x[1:2]),
    "vsplit": (lambda k, x: k.vsplit(x, [1])[1], lambda x: x[1:]),
    "unstack": (lambda k, x: k.unstack(x)[2], lambda x: x[2]),
    "append": (lambda k, x: k.append(x, x[0]), lambda x: np.append(x, x[0])),
    "slice": (lambda k, x: k.slice(x, (1, 0), (2, 3)), lambda x: x[1:3, :3]),
    "diag": (lambda k, x: k.diag(x, 1), lambda x: np.diag(x, 1)),
    "diag of a vector": (
        lambda k, x: k.diag(x[0], -2),
        lambda x: np.diag(x[0], -2),
    ),
    "diagflat": (lambda k, x: k.diagflat(x[:2], 1), lambda x: np.diagflat(x[:2], 1)),
    "diagonal": (lambda k, x: k.diagonal(x), np.diagonal),
    "trace": (lambda k, x: k.trace(x), np.trace),
    "outer": (lambda k, x: k.outer(x, x[0]), lambda x: np.outer(x, x[0])),
    "inner": (lambda k, x: k.inner(x, x), lambda x: np.inner(x, x)),
    "dot": (lambda k, x: k.dot(x[0], x[1]), lambda x: x[0] @ x[1]),
    "dot of matrices": (lambda k, x: k.dot(x, x.T), lambda x: x @ x.T),
    "vdot": (lambda k, x: k.vdot(x, x), lambda x: np.vdot(x, x)),
    "tensordot": (
        lambda k, x: k.tensordot(x, x, ([0], [0])),
        lambda x: np.tensordot(x, x, ([0], [0])),
    ),
    "kron": (lambda k, x: k.kron(x, x[:2, :2]), lambda x: np.kron(x, x[:2, :2])),
    "cross": (
        lambda k, x: k.cross(x[:, :2], x[:, :3]),
        lambda x: np.cross(np.pad(x[:, :2], ((0, 0), (0, 1))), x[:, :3]),
    ),
    "corrcoef": (lambda k, x: k.corrcoef(x), np.corrcoef),
    **{
        f"correlate {mode}": (
            lambda k, x, m=mode: k.correlate(x.ravel(), x[0, :3], mode=m),
            lambda x, m=mode: np.correlate(x.ravel(), x[0, :3], m),
        )
        for mode in ("valid", "same", "full")
    },
    "einsum": (lambda k, x: k.einsum("ij,kj", x, x), lambda x: x @ x.T),
    "einsum of a diagonal": (
        lambda k, x: k.einsum("ii->i", x[:, :3]),
        lambda x: np.diagonal(x[:, :3]),
    ),
    "matmul of several": (
        lambda k, x: k.matmul(np.stack([x, 2 * x]), x.T),
        lambda x: np.stack([x, 2 * x]) @ x.T,
    ),
    "take": (
        lambda k, x: k.take(x, np.array([2, 0], np.int32), axis=1),
        lambda x: x[:, [2, 0]],
    ),
    "take_along_axis": (
        lambda k, x: k.take_along_axis(x, np.array([[1, 0, 2, 2]], np.int32), axis=0),
        lambda x: np.take_along_axis(x, np.array([[1, 0, 2, 2]]), 0),
    ),
    "segment_sum": (
        lambda k, x: k.segment_sum(x, np.array([1, 0, 1], np.int32), 3),
        lambda x: np.stack([x[1], x[0] + x[2], 0 * x[0]]),
    ),
    "segment_max": (
        lambda k, x: k.segment_max(x, np.array([1, 0, 1], np.int32), 2),
        lambda x: np.stack([x[1], np.maximum(x[0], x[2])]),
    ),
    "segment_min": (
        lambda k, x: k.segment_min(x, np.array([1, 0, 1], np.int32), 2),
        lambda x: np.stack([x[1], np.minimum(x[0], x[2])]),
    ),
    "segment_prod": (
        lambda k, x: k.segment_prod(x, np.array([1, 0, 1], np.int32), 2),
        lambda x: np.stack([x[1], x[0] * x[2]]),
    ),
    "isin": (
        lambda k, x: k.isin(x, x[0, :2]),
        lambda x: np.isin(x, x[0, :2]),
    ),
    "allclose": (lambda k, x: k.allclose(x, x), lambda x: 1.0),
    "psnr": (
        lambda k, x: k.psnr(x, x + 0.5, 2.0),
        lambda x: 20 * np.log10(2) - 10 * np.log10(0.25),
    ),
    "histogram": (
        lambda k, x: k.histogram(x, 4, (0.5, 1.5))[0],
        lambda x: np.histogram(x, 4, (0.5, 1.5))[0],
    ),
    "vander": (lambda k, x: k.vander(x[0]), lambda x: np.vander(x[0])),
    "map": (
        lambda k, x: k.map(lambda row: row * 2 + row[0], x),
        lambda x: x * 2 + x[:, :1],
    ),
    "scan": (
        lambda k, x: k.scan(lambda c, row: (c + row, c * row), x[0], x)[1],
        lambda x: (np.cumsum(x, 0) - x + x[0]) * x,
    ),
    "switch": (
        lambda k, x: k.switch(1, [lambda v: v, lambda v: k.sin(v)], x),
        np.sin,
    ),
    "while_loop": (
        lambda k, x: k.while_loop(
            lambda i, v: i < 3, lambda i, v: (i + 1, k.sin(v)), (0, x)
        )[1],
        lambda x: np.sin(np.sin(np.sin(x))),
    ),
}


def _quiet(function):
    def call(x):
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return function(x, -1)

    return call


def _standard(x, axis):
    apart = x - x.mean(axis, keepdims=True)
    return apart / np.sqrt(x.var(axis, keepdims=True) + 1e-3)


def _softmax(x):
    return np.exp(x) / np.exp(x).sum(-1, keepdims=True)


def _cross(target, logs):
    return -(target * logs).sum(-1)


def _attention(x, y, causal):
    q, k, v = (each.reshape(-1, 3, 2, 2) for each in (x, y, x * y))
    scores = np.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(2)
    scores = np.where(np.tri(3) if causal else 1, scores, -np.inf)
    return np.einsum("bhqk,bkhd->bqhd", _softmax(scores), v)


def _convolved(x):
    return x[:, :-1] @ KERNEL[0] + x[:, 1:] @ KERNEL[1]


def _convolved_images(x):
    parts = [
        x[:, i : i + 2, j : j + 1, None] * KERNEL[i, j]
        for i in range(2)
        for j in range(4)
    ]
    return sum(parts)


def _sparsemax(x):
    """By bisection of the threshold."""
    low, high = x.min(-1, keepdims=True) - 1, x.max(-1, keepdims=True)
    for _ in range(60):
        middle = (low + high) / 2
        above = np.maximum(x - middle, 0).sum(-1, keepdims=True) > 1
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return np.maximum(x - low, 0)


def _replaced(x, y):
    made = x.copy()
    made[:, 1:, 1:] = y[:, :2, :3]
    return made
