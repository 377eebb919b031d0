"""Shared memory of the ranks, its limits, and how functions take rows from it.

A `segment` has no name: it is a descriptor (`descriptors`), mapped in huge pages if the
kernel gives them (`mapping`), after a check of free memory (`limits`). `refusals`
explains failed system calls, and `proc` reads ``/proc``. An `arena` is a segment that
is used for one message after another. `partition` computes which rows a rank gets.
`rows`, `loading` and, for GPUs, `to_device` and `cuda` take the rows.
"""
