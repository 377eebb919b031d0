"""Placing reductions: where an operation needs a whole value, all ranks' are combined.

`function` places that of a function, and says why each collective is there. `placer`
goes through a graph. `nodes` keeps what its values are, `whole` reduces and gathers
them, and `reassociate` finds the sums that need not wait. `local_statistics` leaves
statistics to the ranks, where these are meant. `streams` has the streams of random
draws, each rank's and all ranks', and `row_draws` what is drawn for rows.
"""
