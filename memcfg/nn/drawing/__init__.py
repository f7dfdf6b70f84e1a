"""Pictures of models: their layers as boxes, as text of Graphviz and as SVG."""

__all__: list[str] = []
