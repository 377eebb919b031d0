"""How a function's calls are computed, where the script has not said: by its graph."""
