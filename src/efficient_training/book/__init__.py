"""The book: assembled, checked and rendered from chapters and executed notebooks."""
