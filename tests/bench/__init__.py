"""synk beside its peers, in one run: training steps, all-reduces and calls.

From the top of the repository::

    pip install -e '.[bench]'
    python tests/bench [--only mlp|alone|all-reduce|call] [--quick]
                       [--json FILE] [--rst docs/peers.inc]

A full run takes some five minutes and wants a machine that does nothing else. What is
not installed is skipped, and said to be.

How it works::

    cli.py        reads the arguments, runs the families, writes the report
    families.py   what is compared with what, and how results are checked
    report.py     the tables
    rounds.py     the peers' turns: round after round, one peer at a time
    driver.py     starts a peer, asks it, and ends it
       |
       |  link.py: a line of JSON for each question and each answer
       |
    serve.py      the other end, in the peer's process
    peers/        an implementation each: a dictionary of questions

Every implementation runs in processes of its own, so that none changes another one's
threads, cores or allocator, and waits in a read while another one has its turn. All of
them first answer a question whose answer is known: nobody is fast by computing less.
"""
