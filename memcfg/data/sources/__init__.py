"""Datasets of files: records, lines, rows of CSV, and the messages of records."""

__all__: list[str] = []
