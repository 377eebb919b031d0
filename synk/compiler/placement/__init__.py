"""Placing collectives where an operation needs the value of all ranks' rows.

`function` places the collectives of a function, and notes why each is there. `placer`
goes through a graph. `nodes` has the placed nodes with their values, `whole` reduces
and gathers values, and `reassociate` rewrites sums so that they need fewer meetings.
`local_statistics` leaves statistics to each rank, where the script asks for that.
`streams` has the random streams, each rank's own and common ones, and `row_draws`
places draws for rows.
"""
