"""What `synk.theano.pytensor_versions` says of PyTensor's versions is so."""

import importlib.util
import warnings

import numpy as np
import pytensor
import pytensor.gradient
import pytensor.tensor as pt
import pytest

from synk.theano import pytensor_versions as versions

MAJOR = int(pytensor.__version__.split(".")[0])


def test_what_has_other_names_and_places_since_3():
    assert hasattr(pytensor.gradient, "pullback") == (MAJOR >= 3)
    assert hasattr(pytensor.gradient, "pushforward") == (MAJOR >= 3)
    assert issubclass(versions.ordered_updates(), dict)
    assert (versions.ordered_updates() is dict) == (MAJOR >= 3)
    old, new = versions.DEBUGMODE
    assert (importlib.util.find_spec(old) is None) == (MAJOR >= 3)
    assert versions.first_of((old, new), "DebugMode")
    assert versions.first_of(versions.NANGUARDMODE, "NanGuardMode")
    with pytest.raises(ImportError, match="DebugMode"):
        versions.first_of(("pytensor.nowhere",), "DebugMode")


def test_scripts_are_spared_advice_on_drawing():
    rng = pytensor.shared(np.random.default_rng(0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sample, update = versions.draw(pt.random.uniform, rng, 0.0, 1.0, size=(2,))
    assert sample.type.shape == (2,)
    with versions.quiet():
        assert rng.default_update is update


def test_default_updates_of_more_specific_shape_are_refused():
    from synk.theano import default_updates

    x = pt.tensor("x", shape=(None, 3))
    average = pytensor.shared(np.zeros(3))
    with versions.quiet():
        default_updates.theirs.fset(average, 0.5 * average + x.mean(0))
    with pytest.raises(TypeError, match="Cannot convert Type Vector"):
        pytensor.function([x], x + average, mode="FAST_COMPILE")
