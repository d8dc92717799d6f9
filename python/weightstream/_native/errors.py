"""What the runtime and the export raise."""


class Error(RuntimeError):
    """What the runtime refused or failed at; the text names the thing, what was expected and found."""


class ExportError(RuntimeError):
    """A program that cannot be exported, with the name of the thing that stands in the way and what to do about it."""
