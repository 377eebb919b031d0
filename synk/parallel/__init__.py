"""The functions that a script makes, on ranks without a word of synk in it."""
