"""Language models: ``export`` writes a program from a checkpoint, :class:`weightstream.LLM` generates text with it."""

from ._llm.export import export

__all__ = ["export"]
