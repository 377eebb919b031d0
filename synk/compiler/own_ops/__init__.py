"""Users' own Ops: their registered shardings, and a check of these.

`sharding` has the shardings and the registry, `register` the rule, padded form and
lengths that follow from a sharding, `check` compares a sharding with the Op.
"""
