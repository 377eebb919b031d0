"""Training rules: workers train by themselves, and exchange parameters now and then.

Each rule is a file, with the notation of its paper. :func:`simulate` trains virtual
workers by a rule.
"""

from .averaging import LocalSGD, ParameterAveraging
from .diloco import DiLoCo
from .downpour import ASGD, Downpour
from .easgd import EASGD
from .gem import GEM
from .gossip import Gossip
from .predict import Costs, Prediction, predict
from .rule import Group, Rule
from .simulate import Exchange, Simulation, random_turns, simulate

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
