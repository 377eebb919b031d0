"""Threads beside the script's, of which an interrupt leaves nothing hanging.

A signal handler of the script may raise between any two lines that Python runs in the
main thread, those of `threading` and `concurrent.futures` among them: an ``Event`` or a
``Future`` would keep its lock then, and whoever needs it next would wait for ever. What
waits here does so by locks of compiled code alone, which are taken or are not.

``undisturbed``
    Runs something that no signal handler of the script may come into.
``helper``
    A thread that does one job after the other.
"""
