"""Reports about functions and ranks: `explain` and `timeline`."""
