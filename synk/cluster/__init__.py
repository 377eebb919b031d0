"""Several machines: MPI between the masters of nodes.

One MPI process on each node is that node's master. It forks the node's ranks as a
session of one machine does, and it alone calls MPI. The script runs on node 0. The
masters of other nodes *serve*: they have their ranks run node 0's commands.

A session's part of this is in ``ranks.to_nodes`` and ``ranks.serving``; the choice of
the rows that a node gets, and its replies to calls, in ``call.nodes``.
"""
