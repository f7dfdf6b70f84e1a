"""Datasets of folders, images and series, under the names of Keras's utils."""

__all__: list[str] = []
