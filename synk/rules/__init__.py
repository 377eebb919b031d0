"""Training rules: workers train by themselves, and exchange parameters now and then.

Each rule has the notation of its paper. :func:`simulate` trains virtual workers by a
rule.
"""

from .gossip import Gossip
from .predict import Costs, Prediction, predict
from .rule import Group, Rule
from .simulate import Exchange, Simulation, random_turns, simulate
from .with_centre import (
    ASGD,
    EASGD,
    GEM,
    DiLoCo,
    Downpour,
    LocalSGD,
    ParameterAveraging,
)

__all__ = [
    "ASGD",
    "EASGD",
    "GEM",
    "Costs",
    "DiLoCo",
    "Downpour",
    "Exchange",
    "Gossip",
    "Group",
    "LocalSGD",
    "ParameterAveraging",
    "Prediction",
    "Rule",
    "Simulation",
    "predict",
    "random_turns",
    "simulate",
]
