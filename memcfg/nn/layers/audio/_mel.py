"""`MelSpectrogram`: sounds by time and pitch, a step of `Dataset.map`."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from memcfg.nn._argument_checks import integer, real
from memcfg.nn.initializers import window_of
from memcfg.nn.layers._layer import Layer, SymbolicTensor, pattern

_BREAK = 700.0  # hertz: the scale is linear below, logarithmic above
_PER_OCTAVE = 1127.0  # mels, times the natural logarithm of 2


class MelSpectrogram(Layer):
    """Mel spectrograms of sounds, on arrays.

    Parameters
    ----------
    fft_length : int, default 2048
        The length of a Fourier transform, in samples.
    sequence_stride : int, default 512
        The distance of two windows, in samples.
    sequence_length : int, optional
        The length of a window, in samples, by default `fft_length`.
    window : {"hann", "hamming"} or array_like, optional
        The window; None for ones.
    sampling_rate : int, default 16000
        Samples per second.
    num_mel_bins : int, default 128
        The number of bins of pitch.
    min_freq, max_freq : float, optional
        The range of frequencies in hertz, by default 20 to half of `sampling_rate`.
    power_to_db : bool, default True
        Whether to return decibels.
    top_db : float, default 80.0
        The results of a call are at least its highest one less this many decibels.
    mag_exp : float, default 2.0
        The exponent of magnitudes; 2 gives power.
    min_power : float, default 1e-10
        The least power that decibels are taken of.
    ref_power : float, default 1.0
        The power of 0 decibels.
    name : str, optional
        The name.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range.

    Examples
    --------
    >>> import numpy as np
    >>> import memcfg as mc
    >>> layer = mc.nn.layers.MelSpectrogram(256, 128, num_mel_bins=32)
    >>> layer(np.zeros((2, 1600), np.float32)).shape
    (2, 32, 13)
    """

    __slots__ = (
        "fft_length",
        "mag_exp",
        "max_freq",
        "min_freq",
        "min_power",
        "num_mel_bins",
        "power_to_db",
        "ref_power",
        "sampling_rate",
        "sequence_length",
        "sequence_stride",
        "top_db",
        "window",
    )

    takes_channels_first: ClassVar[bool] = False

    def __init__(
        self,
        fft_length: int = 2048,
        sequence_stride: int = 512,
        sequence_length: int | None = None,
        window: Any = "hann",
        sampling_rate: int = 16000,
        num_mel_bins: int = 128,
        min_freq: float = 20.0,
        max_freq: float | None = None,
        power_to_db: bool = True,
        top_db: float = 80.0,
        mag_exp: float = 2.0,
        min_power: float = 1e-10,
        ref_power: float = 1.0,
        *,
        name: str | None = None,
    ) -> None:
        kind = "MelSpectrogram"
        self.fft_length = integer(fft_length, f"{kind}: fft_length")
        self.sequence_stride = integer(sequence_stride, f"{kind}: sequence_stride")
        length = self.fft_length if sequence_length is None else sequence_length
        self.sequence_length = integer(length, f"{kind}: sequence_length")
        if self.sequence_length > self.fft_length:
            raise ValueError(
                f"{kind}: sequence_length is {self.sequence_length}, more than "
                f"fft_length, {self.fft_length}"
            )
        self.window = window
        if not isinstance(window, str) or window not in ("hann", "hamming"):
            if isinstance(window, str):
                raise ValueError(
                    f"{kind}: window must be 'hann', 'hamming', None or numbers, got "
                    f"{window!r}"
                )
            window_of(window, self.sequence_length, kind)
        self.sampling_rate = integer(sampling_rate, f"{kind}: sampling_rate")
        self.num_mel_bins = integer(num_mel_bins, f"{kind}: num_mel_bins")
        self.min_freq = real(min_freq, f"{kind}: min_freq")
        most = self.sampling_rate // 2 if max_freq is None else max_freq
        self.max_freq = real(most, f"{kind}: max_freq")
        self.power_to_db = bool(power_to_db)
        self.top_db = real(top_db, f"{kind}: top_db")
        self.mag_exp = real(mag_exp, f"{kind}: mag_exp")
        self.min_power = real(min_power, f"{kind}: min_power")
        self.ref_power = real(ref_power, f"{kind}: ref_power")
        super().__init__(name)

    def __call__(self, inputs: Any, *more: Any, **options: Any) -> Any:
        """Compute on arrays (samples,) or (n, samples) at once."""
        symbols: list[Any] = []
        pattern((inputs, more, options), symbols, SymbolicTensor)
        if symbols:
            raise TypeError(
                "MelSpectrogram computes on arrays, not in a model: call it in "
                "Dataset.map, before the sounds reach the model"
            )
        sounds = np.asarray(inputs, np.float32)
        if sounds.ndim not in (1, 2):
            raise ValueError(
                "MelSpectrogram takes sounds (samples,) or batches of them, not shape "
                f"{sounds.shape}"
            )
        return self._spectrogram(sounds)

    def _spectrogram(self, sounds: np.ndarray) -> np.ndarray:
        half = self.fft_length // 2
        if sounds.shape[-1] <= half:
            raise ValueError(
                f"MelSpectrogram: {sounds.shape[-1]} samples are too few to be "
                f"mirrored at both ends: fft_length={self.fft_length} takes more than "
                f"{half}"
            )
        sides = [*[(0, 0)] * (sounds.ndim - 1), (half, half)]
        wide = np.pad(sounds, sides, mode="reflect")
        every = np.lib.stride_tricks.sliding_window_view(wide, self.fft_length, -1)
        frames = every[..., :: self.sequence_stride, :]
        window = window_of(self.window, self.sequence_length, type(self).__name__, True)
        before = (self.fft_length - self.sequence_length) // 2
        after = self.fft_length - self.sequence_length - before
        numbers = np.pad(window, (before, after)).astype(np.float32)
        power = np.abs(np.fft.rfft(frames * numbers)) ** self.mag_exp
        mels = power @ self._bins(half + 1)
        if self.power_to_db:
            mels = 10 * np.log10(np.maximum(mels, self.min_power))
            mels -= 10 * np.log10(max(abs(self.ref_power), self.min_power))
            mels = np.maximum(mels, mels.max() - self.top_db)
        result: np.ndarray = np.swapaxes(mels, -1, -2).astype(np.float32)
        return np.ascontiguousarray(result)

    def _bins(self, count: int) -> np.ndarray:
        """Return the triangles by which frequencies are gathered to pitches."""
        hertz = np.linspace(0, self.sampling_rate / 2, count)
        first, last = _mels(np.array([self.min_freq, self.max_freq]))
        edges = np.linspace(first, last, self.num_mel_bins + 2)
        low, middle, high = edges[:-2], edges[1:-1], edges[2:]
        pitch = _mels(hertz)[:, None]
        rising = (pitch - low) / (middle - low)
        falling = (high - pitch) / (high - middle)
        triangles: np.ndarray = np.maximum(0, np.minimum(rising, falling))
        triangles[0] = 0
        return triangles


def _mels(hertz: np.ndarray) -> np.ndarray:
    """Return the pitch of frequencies."""
    result: np.ndarray = _PER_OCTAVE * np.log1p(hertz / _BREAK)
    return result
