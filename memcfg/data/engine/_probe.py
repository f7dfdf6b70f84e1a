"""What the elements of a step are, found by asking for one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memcfg.data._options import Options
from memcfg.data.elements._spec import spec_of, vague
from memcfg.data.engine._iterator import DatasetIterator

if TYPE_CHECKING:
    from memcfg.data.ops._node import Node

__all__ = ["probe"]


def probe(node: Node) -> Any:
    """Run a pipeline for one element and describe it.

    Parameters
    ----------
    node : Node
        The last step.

    Returns
    -------
    nest of TensorSpec
        Dtypes and numbers of axes; sizes are None, for another element may have others.

    Raises
    ------
    ValueError
        If there is no element.
    BaseException
        What a function of the pipeline raised.
    """
    with DatasetIterator(node, Options(), probing=True) as elements:
        for element in elements:
            return vague(spec_of(element))
    raise ValueError(
        "there is no element to tell the element_spec from; from_generator takes an "
        "output_signature that says it"
    )
