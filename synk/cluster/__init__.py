"""Several machines: MPI between the masters of nodes.

One MPI process on each node is that node's master. It forks the node's ranks as a
session of one machine does, and it alone speaks MPI. The script runs on node 0, and the
masters of other nodes serve: they have their ranks run what node 0's have to run.

``launcher``
    What the launcher (mpirun, srun) has said in the environment.
``heads``
    What masters say to one another in each round, and what follows from it; no MPI.
``link``
    Rounds and collectives over MPI.
``node``, ``cores``
    What a script is told of a node, and which cores of its host that has.
``nodes``
    The nodes of a session: who has which ranks; commands to other nodes, and replies.
``serve``
    What the master of another node does.
``translate``
    Arrays in shared memory, which commands and replies name, as bytes to other nodes.
``rows``
    The rows of a call that each node gets.
``comm``
    How a rank meets those of other nodes.
``reduce``, ``homes``
    All-reduces over nodes; those of shared variables.
"""
