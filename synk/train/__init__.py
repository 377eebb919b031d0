"""Training: steps, scaled losses, the loop over epochs, folds and sweeps."""

from .models import Draw, Model, Step, step

__all__ = ["Draw", "Model", "Step", "step"]
