"""Layers that make spectrograms of sounds."""

__all__: list[str] = []
