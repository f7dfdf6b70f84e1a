"""`MaxNumBoundingBoxes`: as many boxes for each image."""

from __future__ import annotations

from typing import Any

import numpy as np

from memcfg.nn._argument_checks import integer
from memcfg.nn.layers.images._image_layer import _ImageLayer, check_mode


class MaxNumBoundingBoxes(_ImageLayer):
    """Have as many boxes for each image, so that batches can be made of them.

    Boxes beyond the number are left out, and missing ones are filled in. The layer
    computes on arrays, as a step of `Dataset.map`.

    Parameters
    ----------
    max_number : int
        The number of boxes.
    fill_value : int, default -1
        The numbers and labels of boxes that are missing.
    bounding_box_format : str, optional
        The format of the boxes, which Keras needs; the result does not depend on it.
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
    >>> boxes = {"boxes": np.zeros((1, 1, 4)), "labels": np.array([[7]])}
    >>> layer = mc.nn.layers.MaxNumBoundingBoxes(2)
    >>> made = layer({"images": np.zeros((1, 8, 8, 3)), "bounding_boxes": boxes})
    >>> made["bounding_boxes"]["labels"]
    array([[ 7, -1]])
    """

    __slots__ = ("bounding_box_format", "fill_value", "max_number")

    def __init__(
        self,
        max_number: int,
        fill_value: int = -1,
        *,
        bounding_box_format: str | None = None,
        name: str | None = None,
    ) -> None:
        kind = "MaxNumBoundingBoxes"
        self.max_number = integer(max_number, f"{kind}: max_number")
        self.fill_value = integer(fill_value, f"{kind}: fill_value", None)
        self.bounding_box_format = bounding_box_format
        self._begin(name, None)

    def _on_arrays(self, data: Any, training: bool = True) -> Any:
        """Return a dict with other boxes; anything without boxes as it is."""
        check_mode(training, type(self).__name__)
        if not isinstance(data, dict) or "bounding_boxes" not in data:
            return data
        boxes = self.transform_bounding_boxes(data["bounding_boxes"], None, training)
        return data | {"bounding_boxes": boxes}

    def transform_images(
        self, images: Any, transformation: Any = None, training: bool = True
    ) -> np.ndarray:
        """Return images as they are."""
        del transformation, training
        return images  # type: ignore[no-any-return]

    def transform_bounding_boxes(
        self, bounding_boxes: Any, transformation: Any, training: bool = True
    ) -> dict[str, Any]:
        """Return as many boxes for each image.

        Parameters
        ----------
        bounding_boxes : dict
            ``"boxes"`` (..., n, 4) and ``"labels"`` (..., n), of an image or of a
            batch.
        transformation : object
            Not read.
        training : bool, default True
            Not read: boxes are counted in any case.

        Returns
        -------
        dict
            The boxes and labels, with the other entries.

        Raises
        ------
        ValueError
            If boxes or labels are missing, or of other shapes.
        """
        del transformation, training
        if not {"boxes", "labels"} <= bounding_boxes.keys():
            raise ValueError(
                "MaxNumBoundingBoxes takes a dict with 'boxes' and 'labels', got "
                f"{', '.join(map(str, bounding_boxes)) or 'nothing'}"
            )
        boxes = np.asarray(bounding_boxes["boxes"])
        labels = np.asarray(bounding_boxes["labels"])
        if boxes.shape != (*labels.shape, 4) or boxes.ndim not in (2, 3):
            raise ValueError(
                "MaxNumBoundingBoxes takes boxes (boxes, 4) and labels (boxes), or "
                f"batches of them, got {boxes.shape} and {labels.shape}"
            )
        made = {"boxes": self._with(boxes, -2), "labels": self._with(labels, -1)}
        return {**bounding_boxes, **made}

    def _with(self, array: np.ndarray, axis: int) -> np.ndarray:
        """Return an array that has the number of boxes along an axis."""
        kept = np.moveaxis(array, axis, 0)[: self.max_number]
        lengths = (self.max_number, *kept.shape[1:])
        result = np.full(lengths, self.fill_value, array.dtype)
        result[: len(kept)] = kept
        return np.moveaxis(result, 0, axis)
