"""synk beside others, in one run: engines, all-reduces, calls, rules and PyMC's models.

From the top of the repository::

    pip install -e '.[bench]'
    python -m tests.bench [engines|peers|rules|pymc] [--only NAME] [--quick] [--write]

``engines`` are likelihoods and training steps, by synk with each engine, by plain
PyTensor, and by hand in JAX, torch and numba; it takes an hour. ``peers`` are
all-reduces and calls by MPI, Gloo, multiprocessing and their like, ``rules`` exchanges
of training rules, ``pymc`` log-densities of PyMC's models beside PyMC's own; they take
some minutes. All want a machine that does nothing else. What is not installed is
skipped, and said to be. ``--write`` writes the tables into the documentation.

    __main__.py   reads the arguments, runs the families, writes the report
    families.py   what is compared with what, and how results are checked
    report.py     the tables
    rounds.py     the peers' turns: round after round, one peer at a time; and first
                  calls, in processes that find nothing on disk, or what is theirs
    driver.py     starts a peer, asks it, and ends it
    serve.py      the other end, in the peer's process
    peers/        the implementations: each a dictionary of questions
    work.py       the questions about what is compiled, and the options

Every implementation runs in processes of its own, so that none changes another one's
threads, cores or allocator, and waits in a read while another one has its turn. All of
them first answer a question whose answer is known: nobody is fast by computing less.
"""
