"""`theano.config`: PyTensor's options, those that Theano alone had, THEANO_FLAGS."""

from __future__ import annotations

import os
import warnings
from typing import Any

import pytensor

_ONLY_THEANO: dict[str, Any] = {
    "device": "cpu",
    "force_device": False,
    "init_gpu_device": "",
    "print_active_device": True,
    "assert_no_cpu_op": "ignore",
    "nocleanup": False,
    "enable_initial_driver_test": True,
    "gpuarray.preallocate": -1.0,
    "gpuarray.sched": "default",
    "gpuarray.single_stream": True,
    "dnn.enabled": "False",
    "dnn.conv.algo_fwd": "small",
    "dnn.conv.algo_bwd_data": "none",
    "dnn.conv.algo_bwd_filter": "none",
    "lib.cnmem": 0.0,
    "nvcc.fastmath": False,
    "nvcc.flags": "",
    "compute_test_value": "off",
    "experimental.unpickle_gpu_on_cpu": False,
    "cuda.root": "",
    "reoptimize_unpickled_function": False,
    "experimental.local_alloc_elemwise": False,
    "warn.ignore_bug_before": "none",
    "warn.argmax_pushdown_bug": False,
    "warn.inc_set_subtensor1": False,
    "warn.reduce_join": False,
    "warn.round": False,
    "warn.signal_conv2d_interface": False,
    "warn.subtensor_merge_bug": False,
    "warn.sum_div_dimshuffle_bug": False,
    "warn.sum_sum_bug": False,
    "warn.vm_gc_bug": False,
}
"""Options that mean nothing here: they can be read and set."""


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

    What PyTensor has is read and set there, so ``theano.config.floatX`` and
    ``pytensor.config.floatX`` are one option. The rest is remembered.
    """

    def __init__(self) -> None:
        object.__setattr__(self, "_own", dict(_ONLY_THEANO))

    def _get(self, name: str) -> Any:
        if not name.startswith("_"):
            there = _pytensor_name(name)
            if there is not None:
                return getattr(pytensor.config, there)
            if name in self._own:
                return self._own[name]
            grouped = *self._own, *(n.replace("__", ".") for n in dir(pytensor.config))
            if any(key.startswith(f"{name}.") for key in grouped):
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

    def _known(self) -> list[str]:
        return sorted({*self._own, *_pytensor_options()})

    def __dir__(self) -> list[str]:
        return self._known()

    def __str__(self) -> str:
        return "\n".join(f"{name} = {self._get(name)!r}" for name in self._known())

    def change_flags(self, *args: Any, **kwargs: Any) -> Any:
        """Return a context manager and decorator that sets options for a while."""
        return pytensor.config.change_flags(*args, **kwargs)


def _set(name: str, there: str, value: Any) -> None:
    """Set an option of PyTensor's, or warn that it is read once only."""
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


def _pytensor_options() -> list[str]:
    return [
        name
        for name in dir(pytensor.config)
        if not name.startswith("_") and "__" not in name and _is_option(name)
    ]


def _is_option(name: str) -> bool:
    try:
        return not callable(getattr(pytensor.config, name))
    except Exception:  # an option that asks for a compiler that is not there
        return False


def _pytensor_name(name: str) -> str | None:
    """Return PyTensor's name of an option: ``scan.allow_gc`` is ``scan__allow_gc``."""
    if name.startswith("_") or name in _ONLY_THEANO:
        return None
    name = name.replace(".", "__")
    return name if hasattr(type(pytensor.config), name) or _is_set(name) else None


def _is_set(name: str) -> bool:
    return hasattr(pytensor.config, name) and _is_option(name)


def read_flags(config: Config, flags: str) -> None:
    """Set options from the text of THEANO_FLAGS: ``floatX=float32,device=cpu``.

    What is set in PYTENSOR_FLAGS as well is left as it is there. Options that have
    gone are passed over with a warning that names them.
    """
    theirs = {
        part.partition("=")[0].strip()
        for part in os.environ.get("PYTENSOR_FLAGS", "").split(",")
    }
    for part in filter(None, (part.strip() for part in flags.split(","))):
        name, equals, text = part.partition("=")
        name = name.strip()
        if name.replace(".", "__") in theirs or name in theirs:
            continue
        try:
            if not equals:
                raise ValueError("no value")
            setattr(config, name, _typed(text.strip(), config._get(name)))
        except (AttributeError, TypeError, ValueError) as error:
            warnings.warn(
                f"THEANO_FLAGS: {part!r} has no effect: {error}", stacklevel=2
            )


def _typed(text: str, present: Any) -> Any:
    """Return `text` as a value of the type that an option has now."""
    if isinstance(present, bool):
        if text.lower() in ("true", "1", "yes", "on"):
            return True
        if text.lower() in ("false", "0", "no", "off"):
            return False
        raise ValueError(f"{text!r} is neither True nor False")
    if isinstance(present, int | float):
        return type(present)(float(text))
    return text


config = Config()
read_flags(config, os.environ.get("THEANO_FLAGS", ""))
