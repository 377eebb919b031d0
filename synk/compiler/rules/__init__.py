"""The table's entries for PyTensor's Ops: a file for each family, helpers in `base`.

All that the table has of one Op is in one file. `proof` imports all files.
"""
