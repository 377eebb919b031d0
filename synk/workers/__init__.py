"""Processes: forking ranks, talking to them, keeping watch over them.

Who is forked by whom is in `zygote_source`, `zygote` (the master's end), `zygote_loop`
and `forks`; what is said in `channel`, by the words of `control`, for which all wait as
`waiting` has it; what a rank computes with in `devices` and `affinity`; and what is
left of one that has failed in `failure` and `recorder`.
"""
