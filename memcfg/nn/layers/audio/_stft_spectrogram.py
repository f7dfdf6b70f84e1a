"""`STFTSpectrogram`: spectrograms whose transform is learned from that of Fourier."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memcfg._checks import unknown
from memcfg.nn._argument_checks import check_channels_last, integer
from memcfg.nn.initializers import STFT, check_window
from memcfg.nn.layers._layer import Layer, Scope, Shape, WeightSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

_MODES = ("log", "magnitude", "psd", "real", "imag", "angle", "stft")
_LEAST = 1e-7  # Keras's epsilon


class STFTSpectrogram(Layer):
    """Spectrograms of sequences (steps, channels) by convolutions.

    The kernels start as those of the short-time Fourier transform, and are trained
    unless ``trainable=False``.

    Parameters
    ----------
    mode : str, default "log"
        The result: ``"log"`` of the magnitude, ``"magnitude"``, ``"psd"``, the power of
        both halves of the spectrum, ``"real"``, ``"imag"``, ``"angle"``, or ``"stft"``,
        both parts one after the other.
    frame_length : int, default 256
        The length of a window, in steps.
    frame_step : int, optional
        The distance of two windows, by default half of `frame_length`.
    fft_length : int, optional
        The length of the transform, by default the next power of two.
    window : str or array_like, default "hann"
        The window, such as ``"hann"``, ``"hamming"`` or ``"blackman"``; None for ones.
    periodic : bool, default False
        Whether the window is one period of a longer one.
    scaling : {"density", "spectrum"}, optional
        Whether the window has norm 1 (``"density"``, the default) or sum 1; None for
        neither.
    padding : {"valid", "same"}, default "valid"
        Whether only whole windows are taken, or one every `frame_step` steps.
    expand_dims : bool, default False
        Whether frequencies and channels are two axes of the result.
    data_format : str, optional
        ``"channels_last"`` or None, or ``"channels_first"``, which is computed channels
        last.
    name : str, optional
        The name, unique within a model.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type, is unknown or out of range.

    Examples
    --------
    >>> import memcfg as mc
    >>> layer = mc.nn.layers.STFTSpectrogram("log", 256, 128)
    >>> layer(mc.nn.Input((16000, 1))).shape
    (None, 124, 129)
    """

    __slots__ = (
        "expand_dims",
        "fft_length",
        "frame_length",
        "frame_step",
        "mode",
        "padding",
        "periodic",
        "scaling",
        "window",
    )

    def __init__(
        self,
        mode: str = "log",
        frame_length: int = 256,
        frame_step: int | None = None,
        fft_length: int | None = None,
        window: Any = "hann",
        periodic: bool = False,
        scaling: str | None = "density",
        padding: str = "valid",
        expand_dims: bool = False,
        data_format: str | None = None,
        *,
        name: str | None = None,
    ) -> None:
        kind = "STFTSpectrogram"
        check_channels_last(data_format, kind)
        for what, value, known in (
            ("mode", mode, _MODES),
            ("padding", padding, ("valid", "same")),
            ("scaling", scaling, ("density", "spectrum", None)),
        ):
            if value not in known:
                names = [each for each in known if each is not None]
                raise unknown(what, str(value), names, f"{kind}: ")
        check_window(window, kind)
        self.mode = mode
        self.frame_length = integer(frame_length, f"{kind}: frame_length")
        self.frame_step, self.fft_length = (
            None if each is None else integer(each, f"{kind}: {what}")
            for what, each in (("frame_step", frame_step), ("fft_length", fft_length))
        )
        if (self.frame_step or 1) > self.frame_length:
            raise ValueError(
                f"{kind}: frame_step is {frame_step}, more than frame_length, "
                f"{self.frame_length}"
            )
        if (self.fft_length or self.frame_length) < self.frame_length:
            raise ValueError(
                f"{kind}: fft_length is {fft_length}, less than frame_length, "
                f"{self.frame_length}"
            )
        self.window = window
        self.periodic = bool(periodic)
        self.scaling = scaling
        self.padding = padding
        self.expand_dims = bool(expand_dims)
        super().__init__(name)

    @property
    def _step(self) -> int:
        return self.frame_step or self.frame_length // 2 or 1

    def _check_shapes(self, shapes: Sequence[Shape]) -> None:
        """Check the rank and that there is a window."""
        self.require_rank(shapes[0], 2, "sequences (steps, channels)")
        if self.padding == "valid" and shapes[0][0] < self.frame_length:
            raise ValueError(
                f"layer {self.name!r} (STFTSpectrogram): {shapes[0][0]} steps are less "
                f"than a window, frame_length={self.frame_length}; padding='same' adds "
                "zeros"
            )

    def specs(self, shapes: Sequence[Shape]) -> tuple[WeightSpec, ...]:
        """Return a kernel for each part that the mode needs."""
        self._check_shapes(shapes)
        size = self.fft_length or 1 << (self.frame_length - 1).bit_length()
        shape = (self.frame_length, 1, size // 2 + 1)
        return tuple(
            WeightSpec(
                f"{side}_kernel",
                shape,
                STFT(side, self.window, self.scaling, self.periodic),
            )
            for side, other in (("real", "imag"), ("imag", "real"))
            if self.mode != other
        )

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the ops."""
        (x,) = scope.apply("transpose", inputs, {"axes": (0, 2, 1)})
        steps = scope.builder.shape(x)[2]
        if self.padding == "same":
            windows = -(-steps // self._step)
            more = max((windows - 1) * self._step + self.frame_length - steps, 0)
            x = _padded(scope, x, more // 2, more - more // 2)
        given = {"length": self.frame_length, "step": self._step, "dilation": 1}
        (frames,) = scope.apply("frames", (x,), given)
        parts = {}
        for side in ("real", "imag"):
            if f"{side}_kernel" in scope.weights:
                kernel = scope.weights[f"{side}_kernel"]
                length, _, bins = scope.builder.shape(kernel)
                (kernel,) = scope.apply("reshape", (kernel,), {"shape": (length, bins)})
                (parts[side],) = scope.apply("dense", (frames, kernel))
        return self._arranged(scope, self._combined(scope, parts))

    def _combined(self, scope: Scope, parts: dict[str, int]) -> int:
        """Append what the mode makes of both parts (n, channels, windows, bins)."""
        if len(parts) == 1:
            return next(iter(parts.values()))
        real, imaginary = parts["real"], parts["imag"]
        if self.mode == "angle":
            return scope.apply("arctan2", (imaginary, real))[0]
        if self.mode == "stft":
            return scope.apply("concatenate", (real, imaginary), {"axis": 3})[0]
        squares = [scope.apply("multiply", (x, x))[0] for x in (real, imaginary)]
        (power,) = scope.apply("add", squares)
        if self.mode == "psd":
            *rest, bins = scope.builder.shape(power)
            if bins < 3:
                return power
            inner = {
                "begin": (0, 0, 0, 1),
                "end": (*rest, bins - 1),
                "strides": (1, 1, 1, 1),
            }
            (again,) = scope.apply("slice", (power,), inner)
            again = _padded(scope, again, 1, 1)
            return scope.apply("add", (power, again))[0]
        least = {"number": _LEAST}
        (power,) = scope.apply("maximum_number", (power,), least)
        (size,) = scope.apply("root", (power,), {"term": 0.0})
        if self.mode == "magnitude":
            return size
        (size,) = scope.apply("maximum_number", (size,), least)
        return scope.apply("logarithm", (size,), {"term": 0.0})[0]

    def _arranged(self, scope: Scope, x: int) -> int:
        """Append the order of axes of the result: (n, windows, bins, channels)."""
        batch, channels, windows, bins = scope.builder.shape(x)
        if self.expand_dims:
            return scope.apply("transpose", (x,), {"axes": (0, 2, 3, 1)})[0]
        (x,) = scope.apply("transpose", (x,), {"axes": (0, 2, 1, 3)})
        shape = {"shape": (batch, windows, channels * bins)}
        return scope.apply("reshape", (x,), shape)[0]


def _padded(scope: Scope, x: int, before: int, after: int) -> int:
    """Append zeros at both ends of the last axis."""
    if not before and not after:
        return x
    rest = (0,) * (len(scope.builder.shape(x)) - 1)
    given = {"before": (*rest, before), "after": (*rest, after), "value": 0.0}
    return scope.apply("pad", (x,), given)[0]
