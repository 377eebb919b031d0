"""Ways of running a graph on a rank; one file each, with one interface.

An engine compiles graphs, and knows how a shared variable holds its value.
"""
