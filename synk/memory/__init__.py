"""Memory that ranks share, what limits it, and how rows get out of it.

A `segment` has no name: it is a descriptor (`descriptors`), mapped in huge pages where
the kernel gives them (`mapping`), within what there is (`limits`); `refusals` says what
a call means that failed, and `proc` who we are to the kernel. An `arena` is a segment
for one message after the other. Which rows a rank gets is said in `partition`; `rows`,
`loading` and, for GPUs, `to_device` and `cuda` take them.
"""
