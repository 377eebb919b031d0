"""Training: steps, loss scaling, the loop over epochs, cross-validation, sweeps."""

from .models import Draw, Model, Step, step

__all__ = ["Draw", "Model", "Step", "step"]
