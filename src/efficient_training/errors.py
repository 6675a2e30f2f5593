"""The one exception that the command line turns into a line of its own and exit code 2, and values as it shows them."""


class UserError(Exception):
    """Something the user can mend. The message says what is wrong, where, and what to do, in one line."""


class UserErrors(UserError):
    """Several of them at once, so that an author sees all of it: `problems` has a line for each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


SHOWN = 80


def shown(value: object) -> str:
    """`value` as a message shows it: in one line, and no more than the start of a long one."""
    try:
        text = repr(value)
    except ValueError:
        return "a number of thousands of digits"  # which Python does not write out
    except RecursionError:
        return "something nested too deeply"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}... ({len(text)} characters)"
