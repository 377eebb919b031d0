"""One file for each implementation; ``opened(options, place)`` yields its questions.

A question is a function of a number. Those that time something return the seconds of
one call, from as many calls as the number says. The modules are imported in the peers'
own processes only, so they import at their top what they measure.
"""
