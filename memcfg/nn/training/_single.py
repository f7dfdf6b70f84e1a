"""One workspace for the whole iteration.

Owns the layout of `WorkspaceMode.SINGLE`: scratch lands in the workspace, too, and
nothing in it is freed before the iteration ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.nn.training._layout import FEEDING, Layout
from memcfg.workspaces import ArrayType

if TYPE_CHECKING:
    from memcfg.runtime import Walk

__all__ = ["single_layout"]

_ITERATION = "LOOP_EXTERNAL"  # DL4J's name


def single_layout(walk: Walk) -> Layout:
    """Put everything into one workspace.

    Parameters
    ----------
    walk : Walk
        A program's walk.

    Returns
    -------
    Layout
        Its size is the sum of all that the walk makes.
    """
    moments = [moment.number for moment in walk.moments]
    return Layout(
        tables=(dict.fromkeys(ArrayType, _ITERATION),),
        table_of=dict.fromkeys([FEEDING, *moments], 0),
        type_of=dict.fromkeys(range(len(walk.graph.tensors)), ArrayType.ACTIVATIONS),
        scratch_of=dict.fromkeys(moments, ArrayType.FF_WORKING_MEM),
        opens={FEEDING: (_ITERATION,)},
        closes={},
    )
