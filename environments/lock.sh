#!/usr/bin/env bash
# Compile every requirements.in to a requirements.txt that serves Linux, macOS and Python 3.11 to 3.13.
# torch pins its CUDA libraries itself, and a CPU build of it needs none: they are left out of the locks.
set -euo pipefail
uv=$(realpath "${1:?usage: lock.sh PATH-OF-UV}")
cd "$(dirname "$0")"
for name in book cpu gpu hopper cluster dev; do
    (
        cd "$name"
        [ -f requirements.txt ] || : > requirements.txt
        "$uv" pip compile --quiet --universal --python-version 3.11 --no-header --annotation-style line \
            requirements.in --output-file requirements.txt "${@:2}" > /dev/null
        awk '/^nvidia-ml-py==/ || !/^(nvidia-|cuda-|triton==)/' requirements.txt > requirements.tmp
        { echo "# Compiled from requirements.in by 'make lock'."; grep -v '^# Compiled' requirements.tmp; } > requirements.txt
        rm requirements.tmp
    )
    echo "environments/$name/requirements.txt: $(grep -c '==' "$name/requirements.txt") packages"
done
