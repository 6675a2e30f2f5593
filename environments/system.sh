#!/bin/sh
# Install the optional system packages: Chromium for the page tests, SLURM for the tests of its launcher, libaio and a
# C++ compiler for offload to disk. What is missing afterwards is said, and only what needs it is left out.
PATH=$PATH:/usr/sbin:/sbin
missing=""
there() { command -v "$1" > /dev/null 2>&1; }
there chromium || missing="$missing chromium"
there slurmctld || missing="$missing slurmctld"
there slurmd || missing="$missing slurmd"
there sbatch || missing="$missing slurm-client"
there munged || missing="$missing munge"
there g++ || missing="$missing g++"
[ -e /usr/include/libaio.h ] || missing="$missing libaio-dev"
without="what needs them (page tests, SLURM tests, offload to disk) is left out"
if [ -z "$missing" ]; then
    echo "system: nothing missing"
elif ! there apt-get; then
    echo "system: no apt-get here;$missing not found: $without"
elif [ "$(id -u)" != 0 ]; then
    echo "system: not root; 'sudo make system' installs$missing; until then $without"
elif apt-get update -qq > /dev/null 2>&1 \
    && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $missing > /dev/null 2>&1; then
    echo "system: installed$missing"
else
    echo "system: apt-get could not install$missing: $without"
fi
