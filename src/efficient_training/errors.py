"""The one exception that the command line turns into a line of its own and exit code 2."""


class UserError(Exception):
    """Something the user can mend. The message says what is wrong, where, and what to do, in one line."""


class UserErrors(UserError):
    """Several of them at once, so that an author sees all of it: `problems` has a line for each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems
