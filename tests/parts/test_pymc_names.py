"""What synk uses of PyMC that is no public protocol is still there."""

import inspect
import sys

import numpy as np
import pytest

pm = pytest.importorskip("pymc", reason="these tests are of synk with PyMC")

from pymc.logprob.utils import CheckParameterValue  # noqa: E402
from pymc.model.core import ValueGradFunction  # noqa: E402
from pymc.sampling import mcmc  # noqa: E402

from synk.pymc.names import (  # noqa: E402
    LOOKS,
    PATHS,
    SAMPLE,
    ForSteps,
    paths_in_turn,
)

GIVEN = {"ravel_inputs": True, "mode": "FAST_COMPILE"}


@pytest.fixture
def model():
    with pm.Model() as found:
        slopes, scale = pm.Normal("slopes", shape=3), pm.HalfNormal("scale")
        pm.StudentT("y", 4, slopes, sigma=scale, observed=np.arange(3.0))
    return found


def test_a_check_has_a_density_and_a_condition(model):
    node = model.logp(sum=False)[-1].owner
    while not isinstance(node.op, CheckParameterValue):
        node = node.inputs[0].owner
    assert node.op.can_be_replaced_by_ninf
    assert len(node.inputs) == 2
    assert node.inputs[1].type.ndim == 0


def test_what_steps_read_is_what_pymcs_function_has(model):
    made = model.logp_dlogp_function(**GIVEN)
    ours = ForSteps(lambda point: (0.0, point), {}, "float64")
    assert isinstance(made, ValueGradFunction)
    of_steps = "_pytensor_function", "_raveled_inputs", "_extra_vars_shared", "dtype"
    for name in of_steps:
        assert hasattr(made, name)
        assert hasattr(ours, name)
    logp, gradient = made._pytensor_function(np.zeros(4))
    assert (np.ndim(logp), gradient.shape) == (0, (4,))


def test_functions_have_the_arguments_and_variables_that_are_looked_at():
    taken = list(inspect.signature(pm.Model.logp_dlogp_function).parameters)
    assert taken[1:5] == ["grad_vars", "tempered", "initial_point", "ravel_inputs"]
    module, name = SAMPLE
    assert module == mcmc.__name__
    code = getattr(mcmc, name).__code__
    names = {"cores", "chains", "nuts_sampler", "compile_kwargs"}
    assert names <= set(code.co_varnames)
    assert hasattr(mcmc, LOOKS)
    # Chains for several cores: `sample` looks the first one up, and calls the other
    # with the same arguments.
    assert {"_mp_sample", "_sample_many"} <= {*code.co_names, *code.co_freevars}
    assert "mp_ctx" in inspect.signature(mcmc._mp_sample).parameters
    kinds = [p.kind for p in inspect.signature(mcmc._sample_many).parameters.values()]
    assert inspect.Parameter.VAR_KEYWORD in kinds


def test_pymc_looks_up_by_which_names_nutpie_compiles_and_samples():
    names = "_sample_external_nuts", "sample"
    codes = [getattr(mcmc, name).__code__ for name in names if hasattr(mcmc, name)]
    code = next(code for code in codes if "compile_pymc_model" in code.co_names)
    assert "nutpie" in {*code.co_names, *code.co_varnames}
    assert "sample" in code.co_names


def test_paths_of_pathfinder_are_told_to_make_no_processes():
    pathfinder = pytest.importorskip("pymc_extras.inference.pathfinder.pathfinder")
    found = []
    for name, how in PATHS.items():
        module = sys.modules.get(f"pymc_extras.inference.pathfinder.{name}")
        plain = getattr(module, "make_generator", None)
        if plain and how.keys() <= inspect.signature(plain).parameters.keys():
            found.append((module, plain))
    assert found, pathfinder
    with paths_in_turn():
        assert all(module.make_generator is not plain for module, plain in found)
    assert all(module.make_generator is plain for module, plain in found)
