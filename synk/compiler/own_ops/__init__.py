"""Users' own Ops: what they say of these, what follows for rows, and a check of it.

`sharding` has what can be said, and what was said of which Op; `register` what the
table of Ops has of them: how they are placed, padded, and how long they are.
"""
