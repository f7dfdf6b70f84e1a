"""`RandomColorJitter`, `RandAugment` and `AugMix`: layers of images after another."""

from __future__ import annotations

from typing import Any

import numpy as np

from memcfg.nn._argument_checks import integer, real
from memcfg.nn.layers.images._affine import check_modes
from memcfg.nn.layers.images._histograms import Equalization
from memcfg.nn.layers.images._image_layer import (
    _ImageLayer,
    factor_of,
    floats,
    value_range_of,
)
from memcfg.nn.layers.images._random_affine import (
    RandomRotation,
    RandomShear,
    RandomTranslation,
)
from memcfg.nn.layers.images._random_color import (
    RandomBrightness,
    RandomContrast,
    _ColorLayer,
)
from memcfg.nn.layers.images._random_tint import (
    RandomColorDegeneration,
    RandomHue,
    RandomSaturation,
)
from memcfg.nn.layers.images._tones import (
    AutoContrast,
    RandomPosterization,
    RandomSharpness,
    Solarization,
)

_SEEDS = 2**31  # of the layers of a chain


def _seed(generator: np.random.Generator) -> int:
    """Draw the seed of a layer's transformation."""
    return int(generator.integers(_SEEDS))


class RandomColorJitter(_ColorLayer):
    """Change brightness, contrast, saturation and hue at random, on arrays.

    The layers `RandomBrightness`, `RandomContrast`, `RandomSaturation` and `RandomHue`
    follow each other, each where its factor is given.

    Parameters
    ----------
    value_range : (float, float), default (0, 255)
        The range of values.
    brightness_factor, contrast_factor : float or (float, float), optional
        The factors of those layers.
    saturation_factor, hue_factor : float or (float, float), optional
        The factors of those layers.
    seed : int, optional
        The seed, by default drawn from `set_random_seed`'s sequence.
    data_format : str, optional
        Must be ``"channels_last"`` or None.
    name : str, optional
        The name.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range.
    """

    __slots__ = (
        "_steps",
        "brightness_factor",
        "contrast_factor",
        "hue_factor",
        "saturation_factor",
    )

    def __init__(
        self,
        value_range: Any = (0, 255),
        brightness_factor: Any = None,
        contrast_factor: Any = None,
        saturation_factor: Any = None,
        hue_factor: Any = None,
        seed: int | None = None,
        data_format: str | None = None,
        *,
        name: str | None = None,
    ) -> None:
        self.value_range = value_range_of(value_range, "RandomColorJitter: value_range")
        self.brightness_factor = brightness_factor
        self.contrast_factor = contrast_factor
        self.saturation_factor = saturation_factor
        self.hue_factor = hue_factor
        kinds: list[tuple[Any, Any]] = [
            (RandomBrightness, brightness_factor),
            (RandomContrast, contrast_factor),
            (RandomSaturation, saturation_factor),
            (RandomHue, hue_factor),
        ]
        self._steps = [
            kind(factor, value_range=self.value_range, seed=0)
            for kind, factor in kinds
            if factor is not None
        ]
        self._begin(name, data_format, seed)

    def get_random_transformation(
        self, data: Any, training: bool = True, seed: int | None = None
    ) -> list[Any] | None:
        """Draw the transformation of each layer."""
        if not training:
            return None
        generator = self._generator(seed)
        return [
            step.get_random_transformation(data, seed=_seed(generator))
            for step in self._steps
        ]

    def transform_images(
        self, images: Any, transformation: Any, training: bool = True
    ) -> np.ndarray:
        """Change colors by one layer after the other."""
        result = floats(images)
        if not training or transformation is None:
            return result
        for step, change in zip(self._steps, transformation, strict=True):
            result = step.transform_images(result, change)
        return result


class _ChoosingLayer(_ImageLayer):
    """The base of layers that apply others, drawn from a list."""

    __slots__ = ("_layers", "factor", "interpolation", "value_range")

    def _choose_from(
        self, factor: Any, value_range: Any, interpolation: str, more: bool
    ) -> None:
        """Set the layers of a factor; some change only values, which not all want."""
        kind = type(self).__name__
        self.factor = factor_of(factor, f"{kind}: factor", 0.0)
        self.value_range = value_range_of(value_range, f"{kind}: value_range")
        check_modes("constant", interpolation, kind)
        self.interpolation = interpolation
        one = self.factor
        ways: dict[str, Any] = {"interpolation": interpolation, "seed": 0}
        colors: dict[str, Any] = {"value_range": self.value_range, "seed": 0}
        bits = max(1, int(8 * one[1]))
        self._layers: dict[str, Any] = {
            "random_shear": RandomShear(one, one, **ways),
            "random_translation": RandomTranslation(one, one, **ways),
            "random_rotation": RandomRotation(one, **ways),
            "random_posterization": RandomPosterization(bits, **colors),
            "solarization": Solarization(one, one, **colors),
            "auto_contrast": AutoContrast(self.value_range),
            "equalization": Equalization(self.value_range),
        }
        if more:
            self._layers |= {
                "random_brightness": RandomBrightness(one, **colors),
                "random_color_degeneration": RandomColorDegeneration(one, **colors),
                "random_contrast": RandomContrast(one, **colors),
                "random_sharpness": RandomSharpness(one, **colors),
            }


class RandAugment(_ChoosingLayer):
    """Apply layers of images that are drawn from eleven, on arrays.

    All images of a call get the same layers, each with parameters of its own.

    Parameters
    ----------
    value_range : (float, float), default (0, 255)
        The range of values.
    num_ops : int, default 2
        The number of layers that are applied.
    factor : float or (float, float), default 0.5
        The factor of the layers, in ``[0, 1]``.
    interpolation : {"bilinear", "nearest"}, default "bilinear"
        How places between pixels are read.
    seed : int, optional
        The seed, by default drawn from `set_random_seed`'s sequence.
    data_format : str, optional
        Must be ``"channels_last"`` or None.
    name : str, optional
        The name.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range.

    References
    ----------
    Cubuk et al., "RandAugment: practical automated data augmentation with a reduced
    search space", NeurIPS 2020.
    """

    __slots__ = ("num_ops",)

    def __init__(
        self,
        value_range: Any = (0, 255),
        num_ops: int = 2,
        factor: Any = 0.5,
        interpolation: str = "bilinear",
        seed: int | None = None,
        data_format: str | None = None,
        *,
        name: str | None = None,
    ) -> None:
        self.num_ops = integer(num_ops, "RandAugment: num_ops")
        self._choose_from(factor, value_range, interpolation, more=True)
        self._begin(name, data_format, seed)

    def get_random_transformation(
        self, data: Any, training: bool = True, seed: int | None = None
    ) -> dict[str, Any] | None:
        """Draw layers, and the transformation of each that is drawn."""
        if not training:
            return None
        generator = self._generator(seed)
        indices = generator.integers(0, len(self._layers), self.num_ops)
        names = [*self._layers]
        changes = {
            names[index]: self._layers[names[index]].get_random_transformation(
                data, seed=_seed(generator)
            )
            for index in indices
        }
        return {"transforms": changes, "layers": [names[index] for index in indices]}

    def transform_images(
        self, images: Any, transformation: Any, training: bool = True
    ) -> np.ndarray:
        """Apply layers."""
        result = floats(images)
        if not training or transformation is None:
            return result
        for name in transformation["layers"]:
            change = transformation["transforms"][name]
            result = self._layers[name].transform_images(result, change)
        return result

    def _transform_masks(
        self, masks: np.ndarray, transformation: Any, *, training: bool
    ) -> np.ndarray:
        result = floats(masks)
        if not training or transformation is None:
            return result
        for name in transformation["layers"]:
            change = transformation["transforms"][name]
            result = self._layers[name]._transform_masks(result, change, training=True)
        return result


class AugMix(_ChoosingLayer):
    """Mix images with chains of layers that are drawn from a list, on arrays.

    ``y = w * x + (1 - w) * sum(w[i] * chain[i](x))``, with w of a beta distribution and
    w[i] of a Dirichlet distribution.

    Parameters
    ----------
    value_range : (float, float), default (0, 255)
        The range of values, to which results are clipped.
    num_chains, chain_depth : int, default 3
        The number of chains, and of draws for each: a layer, or none.
    factor : float or (float, float), default 0.3
        The factor of the layers, in ``[0, 1]``.
    alpha : float, default 1.0
        The parameter of both distributions, greater than 0.
    all_ops : bool, default True
        Whether brightness, contrast, degeneration and sharpness are among the layers.
    interpolation : {"bilinear", "nearest"}, default "bilinear"
        How places between pixels are read.
    seed : int, optional
        The seed, by default drawn from `set_random_seed`'s sequence.
    data_format : str, optional
        Must be ``"channels_last"`` or None.
    name : str, optional
        The name.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range.

    References
    ----------
    Hendrycks et al., "AugMix: a simple data processing method to improve robustness and
    uncertainty", ICLR 2020.
    """

    __slots__ = ("all_ops", "alpha", "chain_depth", "num_chains")

    def __init__(
        self,
        value_range: Any = (0, 255),
        num_chains: int = 3,
        chain_depth: int = 3,
        factor: Any = 0.3,
        alpha: float = 1.0,
        all_ops: bool = True,
        interpolation: str = "bilinear",
        seed: int | None = None,
        data_format: str | None = None,
        *,
        name: str | None = None,
    ) -> None:
        self.num_chains = integer(num_chains, "AugMix: num_chains")
        self.chain_depth = integer(chain_depth, "AugMix: chain_depth")
        self.alpha = real(alpha, "AugMix: alpha")
        if self.alpha <= 0:
            raise ValueError(f"AugMix: alpha must be greater than 0, not {alpha!r}")
        self.all_ops = bool(all_ops)
        self._choose_from(factor, value_range, interpolation, more=self.all_ops)
        self._begin(name, data_format, seed)

    def get_random_transformation(
        self, data: Any, training: bool = True, seed: int | None = None
    ) -> dict[str, Any] | None:
        """Draw the weights, and the layers of each chain."""
        if not training:
            return None
        generator = self._generator(seed)
        weights = generator.dirichlet([self.alpha] * self.num_chains)
        own = generator.beta(self.alpha, self.alpha)
        names, chains = [*self._layers, None], []
        for _ in range(self.num_chains):
            drawn = generator.integers(0, len(names), self.chain_depth)
            chains.append(
                [
                    {
                        "layer_name": name,
                        "transformation": self._layers[name].get_random_transformation(
                            data, seed=_seed(generator)
                        ),
                    }
                    for name in (names[index] for index in drawn)
                    if name is not None
                ]
            )
        return {
            "chain_mixing_weights": np.float32(weights),
            "weight_sample": np.float32(own),
            "chain_transforms": chains,
        }

    def transform_images(
        self, images: Any, transformation: Any, training: bool = True
    ) -> np.ndarray:
        """Mix images with what chains of layers make of them."""
        result = floats(images)
        if not training or transformation is None:
            return result
        mixed = self._mixed(result, transformation, "transform_images")
        clipped: np.ndarray = np.clip(mixed, *self.value_range)
        return clipped

    def _transform_masks(
        self, masks: np.ndarray, transformation: Any, *, training: bool
    ) -> np.ndarray:
        result = floats(masks)
        if not training or transformation is None:
            return result
        return self._mixed(result, transformation, "_transform_masks")

    def _mixed(self, given: np.ndarray, transformation: Any, how: str) -> np.ndarray:
        total = np.zeros_like(given)
        weights = transformation["chain_mixing_weights"]
        for weight, chain in zip(
            weights, transformation["chain_transforms"], strict=True
        ):
            changed = given
            for step in chain:
                method = getattr(self._layers[step["layer_name"]], how)
                changed = method(changed, step["transformation"], training=True)
            total += np.float32(weight) * changed
        own = np.float32(transformation["weight_sample"])
        mixed: np.ndarray = own * given + (1 - own) * total
        return mixed
