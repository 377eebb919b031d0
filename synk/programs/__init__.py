"""The compiled parts of a function, and the way a call runs through them."""
