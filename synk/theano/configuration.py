"""`theano.config`: PyTensor's options, and those that only Theano had."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from typing import Any, Self

import numpy as np
import pytensor

from .configuration_files import read_files, read_flags, theanorc_files

# -- options without a meaning in PyTensor, which can be read and set

_FALSE = """
    force_device nocleanup nvcc.fastmath reoptimize_unpickled_function
    experimental.local_alloc_elemwise cache_optimizations conv.assert_shape
    gpuarray.sync print_test_value scan.debug warn.argmax_pushdown_bug
    warn.gpu_set_subtensor1 warn.gpusum_01_011_0111_bug warn.identify_1pexp_bug
    warn.inc_set_subtensor1 warn.inc_subtensor1_opt warn.reduce_join warn.round
    warn.signal_conv2d_interface warn.subtensor_merge_bug warn.sum_div_dimshuffle_bug
    warn.sum_sum_bug warn.vm_gc_bug
"""

_TRUE = """
    print_active_device enable_initial_driver_test gpuarray.single_stream
    gpuelemwise.sync pickle_test_value tensor.local_elemwise_fusion
"""

_EMPTY = """
    init_gpu_device nvcc.flags cuda.root cuda.include_path contexts dnn.base_path
    dnn.bin_path dnn.include_path dnn.library_path dnn.conv.workmem gpuarray.cache_path
"""

ONLY_THEANO: dict[str, Any] = {
    **dict.fromkeys(_FALSE.split(), False),
    **dict.fromkeys(_TRUE.split(), True),
    **dict.fromkeys(_EMPTY.split(), ""),
    "device": "cpu",
    "assert_no_cpu_op": "ignore",
    "compute_test_value": "off",
    "compute_test_value_opt": "off",
    "deterministic": "default",
    "dnn.enabled": "False",
    "dnn.conv.algo_fwd": "small",
    "dnn.conv.algo_bwd_data": "none",
    "dnn.conv.algo_bwd_filter": "none",
    "dnn.conv.precision": "as_input_f32",
    "gpuarray.preallocate": -1.0,
    "int_division": "int",
    "lib.cnmem": 0.0,
    "numpy.seterr_all": "ignore",
    "numpy.seterr_divide": "None",
    "numpy.seterr_invalid": "None",
    "numpy.seterr_over": "None",
    "numpy.seterr_under": "None",
    "warn.ignore_bug_before": "none",
}
"""Options of Theano alone, by name, with their defaults."""


# -- the options


class _Group:
    """The options below a dotted name: ``config.scan.allow_gc``."""

    def __init__(self, config: Config, prefix: str) -> None:
        object.__setattr__(self, "_config", config)
        object.__setattr__(self, "_prefix", prefix)

    def __getattr__(self, name: str) -> Any:
        return self._config._get(f"{self._prefix}.{name}")

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._config, f"{self._prefix}.{name}", value)


class Config:
    """Theano's options by name.

    Options that PyTensor has are read and set there: ``theano.config.floatX`` and
    ``pytensor.config.floatX`` are one option. The others are stored here.
    """

    def __init__(self) -> None:
        object.__setattr__(self, "_own", dict(ONLY_THEANO))

    def _get(self, name: str) -> Any:
        if not name.startswith("_"):
            there = _pytensor_name(name)
            if there is not None:
                return getattr(pytensor.config, there)
            if name in self._own:
                return self._own[name]
            if any(key.startswith(f"{name}.") for key in self._names()):
                return _Group(self, name)
        raise AttributeError(
            f"theano.config has no option {name!r}; print(theano.config) lists them",
            name=name,
        )

    def __getattr__(self, name: str) -> Any:
        return self._get(name)

    def __setattr__(self, name: str, value: Any) -> None:
        there = _pytensor_name(name)
        if there is not None:
            _set(name, there, value)
        elif name in self._own:
            if name == "device" and not str(value).startswith("cpu"):
                warnings.warn(
                    f"theano.config.device stays 'cpu', not {value!r}: which devices "
                    "are used is said to synk.fork",
                    stacklevel=2,
                )
                return
            self._own[name] = value
        else:
            raise AttributeError(f"theano.config has no option {name!r}", name=name)

    def _names(self) -> Iterator[str]:
        """Yield the names of all options; unlike values, they need no compiler."""
        yield from self._own
        yield from (name.replace("__", ".") for name in dir(pytensor.config))

    def __dir__(self) -> list[str]:
        return sorted({*self._own, *_pytensor_options()})

    def __str__(self) -> str:
        return "\n".join(f"{name} = {self._get(name)!r}" for name in dir(self))

    def change_flags(self, args: Any = (), **kwargs: Any) -> change_flags:
        """Return a context manager and decorator that sets options temporarily."""
        return change_flags(args, **kwargs)


class change_flags(contextlib.ContextDecorator):
    """Set options in a ``with`` block, or during calls as a decorator.

    Options are keywords, with two underscores for a dot; or a dict or pairs,
    ``{"scan.debug": True}``. An unknown option raises `AttributeError`.
    """

    def __init__(self, args: Any = (), **kwargs: Any) -> None:
        self._new = {
            name.replace("__", "."): value
            for name, value in {**dict(args), **kwargs}.items()
        }
        self._old: list[dict[str, Any]] = []
        for name in self._new:
            config._get(name)

    def __enter__(self) -> Self:
        old: dict[str, Any] = {}
        self._old.append(old)
        try:
            for name, value in self._new.items():
                old[name] = config._get(name)
                setattr(config, name, value)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name, value in self._old.pop().items():
            setattr(config, name, value)


def _set(name: str, there: str, value: Any) -> None:
    """Set an option of PyTensor, or warn that PyTensor reads it at import only."""
    try:
        setattr(pytensor.config, there, value)
    except (TypeError, ValueError):
        raise
    except Exception as error:  # PyTensor raises no other class for such options
        if "after initialization" not in str(error):
            raise
        warnings.warn(
            f"theano.config.{name} stays {getattr(pytensor.config, there)!r}: PyTensor "
            f"reads it when it is imported; set PYTENSOR_FLAGS={there}={value}",
            stacklevel=4,
        )


def _pytensor_options() -> Iterator[str]:
    for name in dir(pytensor.config):
        if not name.startswith("_") and "__" not in name:
            # Reading one may need a compiler that is not installed.
            with contextlib.suppress(Exception):
                if not callable(getattr(pytensor.config, name)):
                    yield name


def _pytensor_name(name: str) -> str | None:
    """Return PyTensor's name, such as ``scan__allow_gc``; None if it has no such."""
    if name.startswith("_") or name in ONLY_THEANO:
        return None
    name = name.replace(".", "__")
    return name if hasattr(type(pytensor.config), name) else None


def _asarray(a: Any, dtype: Any, order: Any = None) -> np.ndarray:
    """Return ``numpy.asarray(a, dtype, order)``; the dtype may be "floatX"."""
    if isinstance(dtype, str) and dtype == "floatX":
        dtype = config.floatX
    return np.asarray(a, dtype=dtype, order=order)


config = Config()
_flags = os.environ.get("THEANO_FLAGS", "")
read_files(config, theanorc_files(os.environ), _flags)
read_flags(config, _flags)
