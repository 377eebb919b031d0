"""Arguments that old scripts know by another name."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

_Function = TypeVar("_Function", bound=Callable)


def also_named(other: str, name: str) -> Callable[[_Function], _Function]:
    """Let a function take its argument `name` by the name of `other`, too."""

    def decorate(function: _Function) -> _Function:
        @functools.wraps(function)
        def either(*args: Any, **kwargs: Any) -> Any:
            if other in kwargs:
                if name in kwargs:
                    both = " and ".join(sorted((name, other), key=len))
                    raise TypeError(f"{both} are one argument: give one")
                kwargs[name] = kwargs.pop(other)
            return function(*args, **kwargs)

        return cast("_Function", either)

    return decorate
