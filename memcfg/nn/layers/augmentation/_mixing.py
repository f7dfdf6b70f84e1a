"""`MixUp` and `CutMix`: images mixed with others of their batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from memcfg.nn._argument_checks import real
from memcfg.nn.layers.augmentation._patches import boxes, count_of, per_image
from memcfg.nn.layers.images._image_layer import _ImageLayer, factor_of, floats

_LEAST_ALPHA = 1e-6


class _MixingLayer(_ImageLayer):
    """The base of layers that mix images and labels of a batch."""

    __slots__ = ()

    def transform_labels(
        self, labels: Any, transformation: Any, training: bool = True
    ) -> np.ndarray:
        """Mix labels as the images are mixed.

        Parameters
        ----------
        labels : array_like
            One-hot labels or probabilities of shape (images, classes).
        transformation : object
            The result of `get_random_transformation`.
        training : bool, default True
            Whether the layer does anything.

        Returns
        -------
        numpy.ndarray
            The labels.

        Raises
        ------
        ValueError
            If labels are not of shape (images, classes).
        """
        given = np.asarray(labels)
        if not training or transformation is None:
            return given
        if given.ndim != 2:
            raise ValueError(
                f"{type(self).__name__} mixes one-hot labels (images, classes), not "
                f"labels of shape {given.shape}: use nn.utils.to_categorical"
            )
        weight = np.reshape(transformation["mix_weight"], (-1, 1)).astype(np.float32)
        others = given[transformation["permutation_order"]]
        mixed: np.ndarray = weight * given + (1 - weight) * others
        return mixed.astype(np.float32)


class MixUp(_MixingLayer):
    """Mix images and labels with others of their batch, on arrays.

    ``y = w * x + (1 - w) * other``, with w of a beta distribution for each image. Pass
    a dict of ``images`` and one-hot ``labels``.

    Parameters
    ----------
    alpha : float, default 0.2
        The parameter of the beta distribution, greater than 0.
    data_format : str, optional
        Must be ``"channels_last"`` or None.
    seed : int, optional
        The seed, by default drawn from `set_random_seed`'s sequence.
    name : str, optional
        The name.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range.

    References
    ----------
    Zhang et al., "mixup: beyond empirical risk minimization", ICLR 2018.

    Examples
    --------
    >>> import numpy as np
    >>> import memcfg as mc
    >>> batch = {"images": np.zeros((2, 4, 4, 3)), "labels": np.eye(2)}
    >>> mc.nn.layers.MixUp(seed=1)(batch)["labels"].sum(axis=1)
    array([1., 1.], dtype=float32)
    """

    __slots__ = ("alpha",)

    def __init__(
        self,
        alpha: float = 0.2,
        data_format: str | None = None,
        seed: int | None = None,
        *,
        name: str | None = None,
    ) -> None:
        self.alpha = real(alpha, "MixUp: alpha")
        if self.alpha <= 0:
            raise ValueError(f"MixUp: alpha must be greater than 0, not {alpha!r}")
        self._begin(name, data_format, seed)

    def get_random_transformation(
        self, data: Any, training: bool = True, seed: int | None = None
    ) -> dict[str, Any] | None:
        """Draw the partner of each image, and its own share."""
        if not training:
            return None
        generator, count = self._generator(seed), count_of(data)
        return {
            "mix_weight": np.float32(generator.beta(self.alpha, self.alpha, count)),
            "permutation_order": generator.permutation(count),
        }

    def transform_images(
        self, images: Any, transformation: Any = None, training: bool = True
    ) -> np.ndarray:
        """Mix images."""
        result = floats(images)
        if not training or transformation is None:
            return result
        weight = per_image(transformation["mix_weight"], result).astype(np.float32)
        batch = result if result.ndim == 4 else result[None]
        others = batch[transformation["permutation_order"]].reshape(result.shape)
        mixed: np.ndarray = weight * result + (1 - weight) * others
        return mixed


class CutMix(_MixingLayer):
    """Replace a rectangle of images by that of others of their batch, on arrays.

    Labels are mixed by the areas. Pass a dict of ``images`` and one-hot ``labels``; a
    single image is left as it is.

    Parameters
    ----------
    factor : float or (float, float), default 1.0
        The range of the parameter of the beta distribution of an image's own share, or
        its upper bound, in ``[0, 1]``.
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
    Yun et al., "CutMix: regularization strategy to train strong classifiers with
    localizable features", ICCV 2019.
    """

    __slots__ = ("factor",)

    def __init__(
        self,
        factor: Any = 1.0,
        seed: int | None = None,
        data_format: str | None = None,
        *,
        name: str | None = None,
    ) -> None:
        self.factor = factor_of(factor, "CutMix: factor", 0.0)
        self._begin(name, data_format, seed)

    def get_random_transformation(
        self, data: Any, training: bool = True, seed: int | None = None
    ) -> dict[str, Any] | None:
        """Draw the partner of each image, and the rectangle that it gives."""
        shape = np.shape(data)
        if not training or len(shape) == 3:
            return None
        generator, count = self._generator(seed), shape[0]
        alpha = generator.uniform(*self.factor) + _LEAST_ALPHA
        share = np.sqrt(1 - generator.beta(alpha, alpha, count))
        masks, area = boxes(generator, shape, np.stack([share, share], axis=1))
        return {
            "permutation_order": generator.permutation(count),
            "batch_masks": masks,
            "mix_weight": (1 - area)[:, None, None, None],
        }

    def transform_images(
        self, images: Any, transformation: Any = None, training: bool = True
    ) -> np.ndarray:
        """Replace rectangles."""
        result = floats(images)
        if not training or transformation is None:
            return result
        others = result[transformation["permutation_order"]]
        masks = transformation["batch_masks"][..., :1]  # the same for all channels
        return np.where(masks, others, result)
