"""The base class of what draws itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from memcfg.evaluation.curves._chart_png import png_of
from memcfg.evaluation.curves._chart_svg import svg_of
from memcfg.files import write_atomically

if TYPE_CHECKING:
    from memcfg.evaluation.curves._chart import Chart

__all__ = ["Figure"]


class Figure:
    """Base class of curves, histograms and matrices, which draw themselves.

    A notebook shows the last value of a cell as a picture.
    """

    __slots__ = ()

    def to_svg(self) -> str:
        """Return the picture as SVG, for light and dark pages.

        Returns
        -------
        str
            A document of its own, which refers to no other file.

        Raises
        ------
        ValueError
            If there is too much to draw.
        """
        return svg_of(self._chart(), alone=True)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the picture to a file, as a whole or not at all.

        Parameters
        ----------
        path : str or os.PathLike
            A name that ends in ``.svg``, or in ``.png``, which matplotlib draws.

        Raises
        ------
        ValueError
            If the name has another ending, or there is too much to draw.
        MissingDependencyError
            If the file is a PNG and matplotlib is not installed.
        OSError
            If the file cannot be written.
        """
        suffix = Path(path).suffix.lower()
        if suffix not in (".svg", ".png"):
            raise ValueError(f"a picture is .svg or .png, not {os.fspath(path)!r}")
        content = self.to_svg().encode() if suffix == ".svg" else png_of(self._chart())
        write_atomically(path, content)

    def _repr_html_(self) -> str:
        try:
            return svg_of(self._chart(), alone=False)
        except ValueError:  # too large for a picture
            return ""

    def _chart(self) -> Chart:
        """Return what the picture shows."""
        raise NotImplementedError(f"{type(self).__name__} does not say what it shows")
