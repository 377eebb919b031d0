"""Which engine computes a function, where the script has not said: by measurement."""
