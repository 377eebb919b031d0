"""Reducing and exchanging values between ranks.

`shm` has barriers and exchanges of words between ranks of one machine. A stage's values
lie in a buffer (`buffers`), which `flat` finds by a key. If they are few, every rank
combines all (`small`), otherwise each rank a part (`divided`). `trees` reduces blocks'
values. `device` packs values on GPUs, and `nccl` reduces these. Ranks of training rules
without meetings use `locks`.
"""
