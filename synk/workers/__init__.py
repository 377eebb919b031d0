"""Processes: forking ranks, sending them commands, noticing that one has died.

`zygote_source`, `zygote` (the master's end), `zygote_loop` and `forks` fork processes.
`channel` sends commands and replies, by the shared words of `control`, for which
processes wait by `waiting`. `devices` and `affinity` give a rank its device, cores and
threads. `failure` carries a rank's exception; `recorder` shows what a dead rank did.
"""
