#!/bin/sh
# Print the folder in which tests make theirs: TMPDIR if it is set; else one in memory, where
# nothing waits for a disk, if there is room for it; else the system's.
set -eu

memory=/dev/shm
enough=14000000 # KiB: in three processes the suite's files and processes take 8 GB at most

has_room() {
    [ -w "$memory" ] || return 1
    left=$(df -Pk "$memory" | awk 'END { print $4 }')
    free=$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo)
    [ "$left" -gt "$enough" ] && [ "$free" -gt "$enough" ]
}

if [ -n "${TMPDIR:-}" ]; then
    echo "$TMPDIR"
elif has_room; then
    echo "$memory"
else
    echo /tmp
fi
