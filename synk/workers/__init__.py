"""Processes: forking ranks, talking to them, keeping watch over them.

::

    master (rank 0)                      the user's script
      |  fork, once
      +-- zygote                         a clean copy that only forks and reaps
            |  fork, once per rank
            +-- rank 1 .. n-1            wait for a message, work, reply

    master -> ranks    one message in the control segment, a semaphore post each
    ranks -> master    a reply in the control segment, a semaphore post each
    zygote -> master   a pipe: which rank died, and how

The zygote watches the master, and the kernel kills a rank whose zygote is gone, so
that nothing outlives the master, whatever ends it.

Who is forked by whom is in `zygote_source`, `zygote` (the master's end), `zygote_loop`
and `forks`; what is said in `channel`, by the words of `control`, for which all wait as
`waiting` has it; what a rank computes with in `devices` and `affinity`; and what is
left of one that has failed in `failure` and `recorder`.
"""
