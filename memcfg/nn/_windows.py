"""Windows of signals: by name, as symmetric or periodic numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from memcfg._checks import unknown

# Windows that are sums of cosines: the shares of the constant and of each cosine.
_COSINES = {
    "blackman": (0.42, -0.5, 0.08),
    "blackmanharris": (0.35875, -0.48829, 0.14128, -0.01168),
    "boxcar": (1.0,),
    "flattop": (0.21557895, -0.41663158, 0.277263158, -0.083578947, 0.006947368),
    "hamming": (0.54, -0.46),
    "hann": (0.5, -0.5),
    "nuttall": (0.3635819, -0.4891775, 0.1365995, -0.0106411),
}
WINDOWS = (*sorted([*_COSINES, "bartlett", "cosine"]),)


def check_window(window: Any, what: str) -> None:
    """Raise ValueError for an unknown name of a window."""
    if isinstance(window, str) and window not in WINDOWS:
        raise unknown("window", window, WINDOWS, f"{what}: ")


def window_of(
    window: Any, length: int, what: str, periodic: bool = False
) -> np.ndarray:
    """Return the numbers of a window in float64; None gives ones."""
    check_window(window, what)
    if window is None:
        return np.ones(length)
    if isinstance(window, str):
        if length == 1:
            return np.ones(1)
        size = length + 1 if periodic else length
        return _named(window, size)[:length]
    numbers = np.asarray(window, np.float64)
    if numbers.shape != (length,):
        raise ValueError(
            f"{what}: a window must have shape ({length},), got {numbers.shape}"
        )
    return numbers


def _named(window: str, size: int) -> np.ndarray:
    place = np.arange(size)
    if window == "bartlett":
        return np.bartlett(size)
    if window == "cosine":
        return np.asarray(np.sin(np.pi / size * (place + 0.5)))
    angle = 2 * np.pi * place / (size - 1)
    shares = _COSINES[window]
    return np.asarray(sum(share * np.cos(k * angle) for k, share in enumerate(shares)))
