"""Several machines: MPI between the masters of nodes.

One MPI process on each node is that node's master. It forks the node's ranks as a
session of one machine does, and it alone speaks MPI. The script runs on node 0, and the
masters of other nodes serve: they have their ranks run what node 0's have to run.

``launcher``, ``cores``
    What the launcher (mpirun, srun) has said in the environment, and which cores of its
    host a node has.
``node``, ``look``
    What a script is told of a node, and ``python -m synk info``.
``heads``
    What masters say to one another in each round, and what follows from it; no MPI.
``link``
    Rounds and collectives over MPI.
``meter``, ``clocks``
    What a master has done between nodes, for explanations and traces; how the clocks
    of nodes are compared.
``nodes``
    The nodes of a session: who has which ranks; commands to other nodes, and replies.
``translate``
    Commands and replies as bytes, and the arrays in shared memory that they name.
``message``, ``inbox``
    What of a command all nodes get, and what each alone; where a node puts that.
``keeping``
    Which rows of data other nodes have.
``comm``
    How a rank meets those of other nodes.
``reduce``, ``by_rank``
    All-reduces over nodes; which values all ranks' are sent of.

What the ranks of a session have to do with it is in `ranks`: ``to_nodes``, ``serving``;
which rows a node gets, and what it returns, in ``call.nodes``.
"""
