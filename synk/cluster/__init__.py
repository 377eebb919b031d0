"""Several machines: MPI between the masters of nodes.

One MPI process on each node is that node's master. It forks the node's ranks as a
session of one machine does, and it alone speaks MPI. The script runs on node 0, and the
masters of other nodes serve: they have their ranks run what node 0's have to run.

``launcher``
    What the launcher (mpirun, srun) has said in the environment, and a node's cores.
``rounds``, ``link``
    What masters say to one another in each round, without MPI; rounds and collectives
    over MPI.
``nodes``
    The nodes of a session: who has which ranks; commands to other nodes, and replies.
``message``, ``inbox``
    What of a command all nodes get, and what each alone; where a node puts that.
``cache``
    Which rows of data other nodes have.
``comm``
    How a rank meets those of other nodes, and reduces values with them.
``clocks``
    How the clocks of nodes are compared.

What the ranks of a session have to do with it is in `ranks`: ``to_nodes``, ``serving``;
which rows a node gets, and what it returns, in ``call.nodes``.
"""
