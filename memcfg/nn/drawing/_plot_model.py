"""`plot_model` and `model_to_dot`: a picture of a model."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memcfg._checks import unknown
from memcfg.files import write_atomically
from memcfg.nn._argument_checks import integer
from memcfg.nn._keras_arguments import takes_arguments
from memcfg.nn._sequential import Sequential
from memcfg.nn.drawing._boxes import Box, Boxes, Shown, boxes_of
from memcfg.nn.drawing._svg import svg_of

if TYPE_CHECKING:
    import os

__all__ = ["Dot", "model_to_dot", "plot_model"]

_DIRECTIONS = ("TB", "LR", "BT", "RL")
_TEXT = ("dot", "gv", "raw")


@dataclass(frozen=True)
class Dot:
    """A picture of a model, as text of Graphviz or as SVG; notebooks show it.

    Parameters
    ----------
    name : str
        The name of the model.
    boxes : Boxes
        Its layers and the arrows between them.
    rankdir, splines : str
        The direction of the arrows, and how Graphviz draws them.
    dpi : int
        Dots per inch of a picture of pixels.
    """

    name: str
    boxes: Boxes
    rankdir: str = "TB"
    splines: str = "ortho"
    dpi: int = 200

    def to_string(self) -> str:
        """Return the text for Graphviz.

        Returns
        -------
        str
            A digraph in the DOT language.
        """
        lines = [
            f"digraph {_quoted(self.name)} {{",
            f"  rankdir={self.rankdir}; splines={_quoted(self.splines)}; "
            f"dpi={self.dpi};",
            '  node [shape=box, fontname="Helvetica"];',
        ]
        groups: dict[tuple[str, ...], list[str]] = {}
        for number, box in enumerate(self.boxes.boxes):
            label = "\\n".join(_escaped(line) for line in box.lines)
            groups.setdefault(box.group, []).append(f'n{number} [label="{label}"];')
        for group, inside in groups.items():
            begin, end = [], []
            for depth in range(len(group)):
                path = _quoted("cluster_" + "/".join(group[: depth + 1]))
                label = _quoted(group[depth])
                begin.append(f"subgraph {path} {{ label={label}; style=dashed;")
                end.append("}")
            lines += ["  " + each for each in (*begin, *inside, *end)]
        lines += [f"  n{start} -> n{end};" for start, end in self.boxes.arrows]
        return "\n".join([*lines, "}"]) + "\n"

    def to_svg(self) -> str:
        """Return the picture as SVG, which needs no Graphviz.

        Returns
        -------
        str
            The text of a file.
        """
        return svg_of(self.boxes, self.rankdir)

    _repr_svg_ = to_svg

    def create(self, format: str = "svg") -> bytes:  # noqa: A002  (Graphviz's name)
        """Return the contents of a file.

        Parameters
        ----------
        format : str, default "svg"
            ``"svg"``, ``"dot"``, or what the program `dot` of Graphviz makes, such as
            ``"png"``.

        Returns
        -------
        bytes
            The contents.

        Raises
        ------
        ImportError
            If Graphviz is needed and not installed.
        ValueError
            If Graphviz cannot make the format.
        """
        if format in _TEXT:
            return self.to_string().encode()
        if format == "svg":
            return self.to_svg().encode()
        program = shutil.which("dot")
        if program is None:
            raise ImportError(
                f"a picture as {format} needs the program dot of Graphviz, which is "
                "not installed: use a file with the suffix .svg, or .dot"
            )
        made = subprocess.run(
            [program, f"-T{format}"],
            input=self.to_string().encode(),
            capture_output=True,
            check=False,
        )
        if made.returncode:
            told = made.stderr.decode(errors="replace").strip()
            raise ValueError(f"Graphviz: {told}")
        return made.stdout

    def write(self, path: str | os.PathLike[str], format: str | None = None) -> None:  # noqa: A002
        """Write a file.

        Parameters
        ----------
        path : path-like
            The file.
        format : str, optional
            As for `create`; by default the suffix of the file.

        Raises
        ------
        ImportError, ValueError
            As of `create`.
        """
        suffix = Path(path).suffix[1:].lower()
        write_atomically(path, self.create(format or suffix or "png"))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _quoted(text: str) -> str:
    return f'"{_escaped(text)}"'


@takes_arguments
def model_to_dot(
    model: Any,
    show_shapes: bool = False,
    show_dtype: bool = False,
    show_layer_names: bool = True,
    rankdir: str = "TB",
    expand_nested: bool = False,
    dpi: int = 200,
    subgraph: bool = False,
    show_layer_activations: bool = False,
    show_trainable: bool = False,
    splines: str = "ortho",
) -> Dot:
    """Return a picture of a model, a box for each layer.

    Parameters
    ----------
    model : Model
        The model, which is built.
    show_shapes, show_dtype, show_layer_names : bool
        Whether boxes have the shapes, the dtype and the name of the layer.
    rankdir : {"TB", "LR", "BT", "RL"}, default "TB"
        The direction of the arrows: from the top to the bottom, and so on.
    expand_nested : bool, default False
        Whether models within the model are shown with their layers.
    dpi : int, default 200
        Dots per inch of a picture of pixels.
    subgraph : bool, default False
        Whether the layers are in a frame with the model's name.
    show_layer_activations, show_trainable : bool, default False
        Whether boxes have the activation, and whether the weights are trained.
    splines : str, default "ortho"
        How Graphviz draws arrows.

    Returns
    -------
    Dot
        The picture.

    Raises
    ------
    ValueError
        If the model is not built, or an argument is unknown.

    Examples
    --------
    >>> import memcfg as mc
    >>> model = mc.nn.Sequential([mc.nn.Input((4,)), mc.nn.Dense(2, name="last")])
    >>> print(mc.nn.utils.model_to_dot(model).to_string().splitlines()[3].strip())
    n0 [label="last (Dense)"];
    """
    if rankdir not in _DIRECTIONS:
        raise unknown("rankdir", str(rankdir), _DIRECTIONS, "model_to_dot: ")
    network = getattr(model, "_network", None)
    if network is None:
        raise ValueError(
            "the model is not built, so that its layers have no shapes: call build, or "
            "use it on data before"
        )
    shown = Shown(
        shapes=show_shapes,
        dtype=show_dtype,
        names=show_layer_names,
        activations=show_layer_activations,
        trainable=show_trainable,
        nested=expand_nested,
    )
    made = boxes_of(network, shown, starts=not isinstance(model, Sequential))
    if subgraph:
        made.boxes = [Box(each.lines, (model.name, *each.group)) for each in made.boxes]
    return Dot(model.name, made, rankdir, splines, integer(dpi, "dpi"))


@takes_arguments
def plot_model(
    model: Any,
    to_file: str | os.PathLike[str] = "model.png",
    show_shapes: bool = False,
    show_dtype: bool = False,
    show_layer_names: bool = False,
    rankdir: str = "TB",
    expand_nested: bool = False,
    dpi: int = 200,
    show_layer_activations: bool = False,
    show_trainable: bool = False,
    splines: str = "ortho",
) -> Dot:
    """Write a picture of a model to a file.

    Parameters
    ----------
    model : Model
        The model, which is built.
    to_file : path-like, default "model.png"
        The file. With the suffix ``.svg`` or ``.dot`` nothing else is needed; others,
        such as ``.png``, need the program `dot` of Graphviz.
    show_shapes, show_dtype, show_layer_names : bool, default False
        Whether boxes have the shapes, the dtype and the name of the layer.
    rankdir : {"TB", "LR", "BT", "RL"}, default "TB"
        The direction of the arrows: from the top to the bottom, and so on.
    expand_nested : bool, default False
        Whether models within the model are shown with their layers.
    dpi : int, default 200
        Dots per inch of a picture of pixels.
    show_layer_activations, show_trainable : bool, default False
        Whether boxes have the activation, and whether the weights are trained.
    splines : str, default "ortho"
        How Graphviz draws arrows.

    Returns
    -------
    Dot
        The picture, which notebooks show.

    Raises
    ------
    ImportError
        If Graphviz is needed and not installed.
    ValueError
        If the model is not built, or an argument is unknown.
    """
    made = model_to_dot(
        model,
        show_shapes=show_shapes,
        show_dtype=show_dtype,
        show_layer_names=show_layer_names,
        rankdir=rankdir,
        expand_nested=expand_nested,
        dpi=dpi,
        show_layer_activations=show_layer_activations,
        show_trainable=show_trainable,
        splines=splines,
    )
    made.write(to_file)
    return made
