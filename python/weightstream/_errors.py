"""Errors of the export side."""


class ExportError(RuntimeError):
    """A program that cannot be exported, with the name of the thing that stands in the way and what to do about it."""
