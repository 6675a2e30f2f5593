"""Efficient Training: the instruments behind the book, and the tools that run and render it."""

__version__ = "0.1.0"
