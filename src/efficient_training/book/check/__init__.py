"""The lint of the book: chapters, bindings, references, embeds and committed notebooks. It imports no torch."""

from .door import Survey, check, counts, survey
from .problems import Problem
from .quantities import Counts

__all__ = ["Counts", "Problem", "Survey", "check", "counts", "survey"]
