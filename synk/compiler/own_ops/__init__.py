"""Users' own Ops: what they say of these, what follows for rows, and a check of it.

`sharding` has what can be said, `registry` what was said of which Op. The three ways to
read a graph each have their rule in a file: `rule` for placing, `lengths`, `padded`.
"""
