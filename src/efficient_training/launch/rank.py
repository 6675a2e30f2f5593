"""One rank of a launch: `python -m efficient_training.launch.rank script arguments...`, started by a launcher.

Runs the script as Python would, with a log of its own; notes where it runs and what ends it; writes every thread's
stack to the log on SIGUSR1; and dies with the launcher that started it.
"""

import faulthandler
import os
import signal
import sys
from pathlib import Path
from types import ModuleType

from . import exchange
from .guard import die_with_parent


def main() -> None:
    """Run the script named by the command line in this process."""
    die_with_parent(signal.SIGKILL)
    folder = exchange.folder()
    if folder is not None:
        _redirect(exchange.log_path(folder, exchange.rank()))
        exchange.write_start(folder)
    if hasattr(faulthandler, "register"):  # not on Windows
        faulthandler.register(signal.SIGUSR1, all_threads=True, chain=False)
    script = Path(sys.argv[1]).absolute()
    sys.argv = sys.argv[1:]
    if not sys.flags.safe_path:
        sys.path[0] = str(script.resolve().parent)
    # A module of its own, as processes that the script spawns and what it pickles ask for __main__.
    module = ModuleType("__main__")
    module.__file__ = str(script)
    own, sys.modules["__main__"] = sys.modules["__main__"], module
    try:
        exec(compile(script.read_bytes(), str(script), "exec"), module.__dict__)
    except SystemExit as end:
        if end.code in (None, 0):
            exchange.write_end()
        else:
            exchange.record_error(end, None)
        raise
    except BaseException as error:
        exchange.record_error(error, error.__traceback__ and error.__traceback__.tb_next)
        raise
    else:
        exchange.write_end()
    finally:
        del own


def _redirect(log: Path) -> None:
    """Send stdout and stderr, of this process and of those that it starts, to `log`."""
    opened = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.dup2(opened, 1)
    os.dup2(opened, 2)
    os.close(opened)


if __name__ == "__main__":
    main()
