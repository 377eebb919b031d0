"""Placing reductions: where an operation needs a whole value, all ranks' are combined.

`placer` goes through a graph. `nodes` keeps what its values are, `whole` makes values
whole, `earlier` finds the sums that need not wait, and `gathered` has all ranks' rows.
`own` leaves statistics to the ranks, where these are meant. `streams` has the streams
of random draws, each rank's and all ranks', and `row_draws` what is drawn for rows.
`needs` says why a collective is there.
"""
