"""The command `efficient-training`, also as `python -m efficient_training`."""

import sys


def main() -> None:
    """Run the command line; an environment that lacks a package, its deletion cut short perhaps, is one line."""
    try:
        from .cli import main as run

        run()
    except ModuleNotFoundError as error:
        if not error.name or error.name.startswith(str(__package__)):
            raise
        print(
            f"error: {sys.prefix}: this environment lacks the package {error.name}; delete that folder, "
            "then the same `make` makes it anew",
            file=sys.stderr,
        )
        sys.exit(2)


if __name__ == "__main__":
    main()
