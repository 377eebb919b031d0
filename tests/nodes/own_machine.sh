#!/bin/bash
# own_machine.sh COMMAND...: runs it with mounts, processes and memory of its own, as on
# another machine: what nodes share by accident is not there.
exec unshare --mount --pid --ipc --fork --kill-child --mount-proc \
    bash -c 'mount -t tmpfs tmpfs /dev/shm && exec "$@"' own_machine "$@"
