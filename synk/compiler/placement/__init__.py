"""Placing reductions: where an operation needs a whole value, all ranks' are combined.

`placer` goes through a graph, `whole` makes values whole.
"""
