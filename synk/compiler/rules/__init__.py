"""The table's entries for PyTensor's Ops: a file for each family, and what they share.

What is said of one Op stands in one file. `proof` imports them all.
"""
