"""Ops that a trace would otherwise have in another form than eager mode."""
