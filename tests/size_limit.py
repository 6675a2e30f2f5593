"""Fail where a file named on the command line is larger than the limit: the repository holds sources, not data."""

import sys
from pathlib import Path

LIMIT_BYTES = 2_000_000


def main(names: list[str]) -> int:
    large = [name for name in names if Path(name).is_file() and Path(name).stat().st_size > LIMIT_BYTES]
    for name in large:
        print(f"{name}: {Path(name).stat().st_size:,} bytes, above {LIMIT_BYTES:,}; leave it out or make it smaller")
    return 1 if large else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
