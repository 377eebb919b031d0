"""Reducing and exchanging values between ranks.

Ranks of one machine meet, and exchange words, as `shm` has it. A stage's values lie in
a buffer (`buffers`) that `flat` finds by a key: few are combined by every rank
(`small`), of many each rank reduces a part (`divided`), and values of blocks of rows go
in a tree (`trees`). Values on GPUs are packed (`device`) and go by `nccl`. Training
rules that do not meet use `locks`.
"""
