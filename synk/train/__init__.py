"""Training: steps, scaled losses, the loop over epochs, folds and sweeps."""
