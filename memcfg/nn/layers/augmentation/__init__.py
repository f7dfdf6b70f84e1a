"""Layers that erase, blur, bend, mix and chain variations of images, on arrays."""

__all__: list[str] = []
