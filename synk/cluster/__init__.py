"""Several machines: MPI between the masters of nodes.

One MPI process on each node is that node's master. It forks the node's ranks as a
session of one machine does, and it alone speaks MPI. The script runs on node 0, and the
masters of other nodes serve: they have their ranks run what node 0's have to run.

What the ranks of a session have to do with it is in `ranks`: ``to_nodes``, ``serving``;
which rows a node gets, and what it returns, in ``call.nodes``.
"""
