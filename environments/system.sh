#!/bin/sh
# Install the optional system packages. What is missing afterwards is said, and only what needs it is left out.
packages="chromium"
missing=""
for package in $packages; do
    command -v "$package" > /dev/null 2>&1 || missing="$missing $package"
done
if [ -z "$missing" ]; then
    echo "system: nothing missing"
elif ! command -v apt-get > /dev/null 2>&1; then
    echo "system: no apt-get here; without$missing the page tests are skipped"
elif [ "$(id -u)" != 0 ]; then
    echo "system: not root; 'sudo make system' installs$missing, without which the page tests are skipped"
elif apt-get update -qq > /dev/null 2>&1 && apt-get install -qq -y --no-install-recommends $missing > /dev/null 2>&1; then
    echo "system: installed$missing"
else
    echo "system: apt-get could not install$missing; the page tests are skipped"
fi
