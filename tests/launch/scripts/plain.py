"""A script that knows nothing of launching: its last rank does what its argument says. No torch: it starts fast."""

import os
import signal
import subprocess
import sys
import time


def misbehave(how: str) -> None:
    match how:
        case "raise":
            raise ValueError("a bad batch")
        case "exit":
            print("no data", file=sys.stderr)
            sys.exit(7)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            time.sleep(1000)
        case "daemon":  # outlives this process, in a session of its own
            print(subprocess.Popen(["sleep", "1000"], start_new_session=True).pid)


rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
print(f"rank {rank} of {ranks}, {__name__}, {sys.argv[1:]}, threads {os.environ['OMP_NUM_THREADS']}", flush=True)
if rank == ranks - 1:
    misbehave(sys.argv[1])
