"""The one exception that the command line turns into a line of its own and exit code 2."""


class UserError(Exception):
    """Something the user can mend. The message says what is wrong, where, and what to do, in one line."""
