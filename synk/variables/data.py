"""`synk.data` and `Data`: arrays in shared memory, which every rank reads in place."""

from __future__ import annotations

import itertools
import math
import operator
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ..errors import ORDINARY, StateError
from ..memory.segment import WATCHED, Segment, Window
from ..ranks.groups import INHERITED
from ..ranks.session import SESSION
from ..user_frames import entry
from ..workers.forks import forks_by_script
from .array_like import has_missing, refuse_masked, table_as_array, why_not


@entry
def data(
    value: Any = None,
    var: Any = None,
    dtype: Any = None,
    ndim: int | None = None,
    shape: tuple[int, ...] | None = None,
    minibatch: bool = False,
    force_cast: bool = False,
    oversize: float = 1,
    name: str | None = None,
) -> Data:
    """Make an array in shared memory, for use as an input of synk functions.

    Parameters
    ----------
    value : array_like, optional
        The first contents; copied.
    var : TensorVariable, optional
        The input that the data is for: dtype, number of dimensions and name are those
        of `var`. Without `var`, `dtype` and `ndim`, those of `value`.
    dtype : dtype, optional
        Any dtype of fixed size.
    ndim : int, optional
        The number of dimensions.
    shape : tuple of int, optional
        The shape if there is no `value`; the data is then filled with zeros.
    minibatch : bool
        If True, the data holds only the rows of a batch, in the batch's order: row i
        belongs to the i-th row that the `batch` of a call selects.
    force_cast : bool
        If True, values are cast to the dtype even where that loses information.
    oversize : float
        Reserve `oversize` times the memory needed, at least 1, to grow into.
    name : str, optional
        Shown in messages.

    Returns
    -------
    Data

    Raises
    ------
    SharedMemoryFull
        If there is not enough shared memory.
    StateError
        In a worker.
    TypeError, ValueError
        If value, dtype, ndim and shape do not fit together.

    Examples
    --------
    >>> import synk
    >>> x = synk.data([[1, 2], [3, 4]], dtype="float32")
    >>> x[1] = 0
    >>> x
    <synk.Data shape=(2, 2) dtype=float32>
    >>> x[:].sum()
    np.float32(3.0)
    """
    if var is not None:
        dtype = var.type.dtype if dtype is None else dtype
        ndim = var.type.ndim if ndim is None else ndim
        name = var.name if name is None else name
    if value is not None:
        given = _as_array("synk.data", value, np.dtype(dtype or float), force_cast)
        dtype = given.dtype if dtype is None else dtype
        ndim = given.ndim if ndim is None else ndim
        if shape is not None and tuple(shape) != given.shape:
            raise ValueError(f"shape={shape} was given with a value of {given.shape}")
    elif shape is not None:
        shape = _check_shape(shape)
        ndim = len(shape) if ndim is None else ndim
    if dtype is None or ndim is None:
        raise TypeError("give a value, a variable (var), or dtype and ndim or shape")
    result = Data(dtype, ndim, minibatch, force_cast, oversize, name)
    if value is not None:
        result.set_value(value)
    elif shape is not None:
        result.set_shape(shape)
    return result


class Data:
    """An array in shared memory; made by :func:`synk.data`.

    Reading and writing with ``[]`` follow numpy, and act on the memory that the ranks
    read. ``x[...]`` of a slice is a view: it stays valid, and keeps the memory, even
    when the data grows or is freed.

    Notes
    -----
    A function keeps terms that depend on data alone, such as ``gammaln(y + 1)``, from
    call to call (see :doc:`performance`). It does so only while nobody can write to the
    data: no array from ``x.data``, ``x[...]`` or ``numpy.asarray(x)``, and no view of
    one, exists any more. After a write through a bare address, whose array is gone,
    read ``x.data``: that counts as a change.
    """

    def __init__(
        self,
        dtype: Any,
        ndim: int,
        minibatch: bool = False,
        force_cast: bool = False,
        oversize: float = 1,
        name: str | None = None,
    ) -> None:
        if SESSION.state == "worker":
            raise StateError(f"this is rank {SESSION.rank}, a worker: no Data here")
        self._dtype = np.dtype(dtype)
        if self._dtype.hasobject or not self._dtype.itemsize:
            raise TypeError(f"dtype {self._dtype} has no fixed size for shared memory")
        self._ndim = operator.index(ndim)
        if not 0 <= self._ndim <= 32:
            raise ValueError(f"ndim must be from 0 to 32, got {ndim}")
        self.minibatch = bool(minibatch)
        self.name = name
        self._force_cast = bool(force_cast)
        self._oversize = _check_oversize(oversize)
        self._segment: Segment | None = None
        self._array: np.ndarray | None = None  # never given to the script
        self._lending = Lending()
        self._forget: weakref.finalize | None = None

    # -- what it is

    @property
    def data(self) -> np.ndarray:
        """The whole array, a view of the shared memory.

        Raises
        ------
        ValueError
            If it holds nothing: no value was set, or it was freed.
        """
        held = self._held()
        assert self._segment is not None
        return self._lending.lend(self._segment.array(held.dtype, held.shape))

    def _held(self) -> np.ndarray:
        """Return the array, for callers that only read, and keep no view of it."""
        if self._array is None:
            raise ValueError(f"{self!r} holds nothing: set a value or a shape first")
        return self._array

    @property
    def _state(self) -> int | None:
        """A number of the present values, or None; see `Lending.state`."""
        return self._lending.state

    @property
    def dtype(self) -> np.dtype:
        """The dtype, fixed at creation."""
        return self._dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions, fixed at creation."""
        return self._ndim

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""
        return self._held().shape

    @property
    def size(self) -> int:
        """The number of elements."""
        return self._held().size

    @property
    def alloc_size(self) -> int:
        """The number of elements there is memory for."""
        return (
            0 if self._segment is None else self._segment.nbytes // self.dtype.itemsize
        )

    def __len__(self) -> int:
        return len(self._held())

    def __getitem__(self, index: Any) -> Any:
        return self.data[index]

    @entry
    def __setitem__(self, index: Any, value: Any) -> None:
        if self.dtype.fields is None:
            value = self._cast(value)
        elif isinstance(value, Data):
            value = value.data
        else:  # records: numpy takes a tuple, or one field's values
            refuse_masked(self, value)
        self.data[index] = value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy or (dtype is not None and np.dtype(dtype) != self.dtype):
            if copy is False:
                raise ValueError(f"{self!r} cannot be {dtype} without a copy")
            return np.array(self._held(), dtype=dtype)
        return self.data

    def __repr__(self) -> str:
        name = "" if self.name is None else f" {self.name!r}"
        shape = f"shape={self._array.shape}" if self._array is not None else "empty"
        return f"<synk.Data{name} {shape} dtype={self.dtype}>"

    # -- changing it

    @entry
    def condition_data(self, value: Any, force_cast: bool | None = None) -> np.ndarray:
        """Return `value` as an array of this data's dtype and number of dimensions.

        Parameters
        ----------
        value : Data or array_like
        force_cast : bool, optional
            Whether to cast even where that loses information; by default as the data
            was made.

        Raises
        ------
        TypeError
            If the dtype cannot be cast without loss, and `force_cast` is not set, or
            the number of dimensions differs.
        """
        array = self._cast(value, force_cast)
        if array.ndim != self.ndim:
            raise TypeError(
                f"{self!r} has {self.ndim} dimensions, the value {array.ndim}"
                f" (shape {array.shape})"
            )
        return array

    @entry
    def set_value(
        self,
        value: Any,
        force_cast: bool | None = None,
        oversize: float | None = None,
    ) -> None:
        """Replace the contents by a copy of `value`; the memory grows if it must.

        Parameters
        ----------
        value : Data or array_like
        force_cast : bool, optional
            As for :meth:`condition_data`.
        oversize : float, optional
            If the memory must grow, reserve `oversize` times what is needed; by default
            as the data was made.

        Raises
        ------
        TypeError
            As for :meth:`condition_data`.
        SharedMemoryFull
            If the memory must grow and there is not enough.
        """
        array = self.condition_data(value, force_cast)
        if self._array is not None and np.may_share_memory(array, self._array):
            array = array.copy()
        self._resize(array.shape, oversize)
        self.data[...] = array

    @entry
    def set_length(self, length: int, oversize: float | None = None) -> None:
        """Set the number of rows; those that remain are kept, new ones hold zeros.

        Parameters
        ----------
        length : int
        oversize : float, optional
            If the memory must grow, reserve `oversize` times what is needed.
        """
        if self.ndim == 0:
            raise ValueError(f"{self!r} has no rows: it has no dimensions")
        self.set_shape((length, *self.shape[1:]), oversize)

    @entry
    def set_shape(self, shape: tuple[int, ...], oversize: float | None = None) -> None:
        """Set the shape; the part that old and new shape share is kept, the rest is 0.

        Parameters
        ----------
        shape : tuple of int
        oversize : float, optional
            If the memory must grow, reserve `oversize` times what is needed.
        """
        shape = _check_shape(shape)
        if len(shape) != self.ndim:
            raise ValueError(f"{self!r} has {self.ndim} dimensions, got shape {shape}")
        old = self._array
        if old is None or old.shape[1:] == shape[1:]:
            before = 0 if old is None else min(len(old), shape[0]) if shape else 1
            self._resize(shape, oversize)
            if shape:
                self.data[before:] = np.zeros((), self.dtype)
            elif old is None:
                self.data[...] = np.zeros((), self.dtype)
            return
        kept = tuple(slice(min(a, b)) for a, b in zip(old.shape, shape, strict=True))
        saved = old[kept].copy()
        self._resize(shape, oversize)
        self.data[...] = np.zeros((), self.dtype)
        self.data[kept] = saved

    def free_memory(self) -> None:
        """Give the shared memory back; the data can be set again."""
        if self._forget is not None:
            self._forget()
        self._segment = self._array = self._forget = self._lending.window = None

    def _resize(self, shape: tuple[int, ...], oversize: float | None = None) -> None:
        """Give the array a new `shape`; old rows keep their place in memory."""
        factor = self._oversize if oversize is None else _check_oversize(oversize)
        needed = math.prod(shape) * self.dtype.itemsize
        if self._segment is None:
            self._segment = Segment(math.ceil(needed * factor))
            self._forget = weakref.finalize(
                self, SESSION.notify, "segment", self._segment.key
            )
            self._forget.atexit = False
            WATCHED[self._segment.key] = self._lending
        elif needed > self._segment.nbytes:
            self._segment.grow(math.ceil(needed * factor))
        self._array = self._segment.array(self.dtype, shape)
        self._lending.window = None

    def _cast(self, value: Any, force_cast: bool | None = None) -> np.ndarray:
        forced = self._force_cast if force_cast is None else force_cast
        if not hasattr(value, "dtype") and self.dtype.kind not in "biufc":
            refuse_masked(self, value)
            return np.asarray(value, self.dtype)  # numpy knows how to read records
        array = _as_array(self, value, self.dtype, forced)
        if array.dtype == self.dtype:
            return array
        # Python's own numbers have no precision to lose, only a kind.
        kinds = (array.dtype.kind, self.dtype.kind)
        loose = kinds in (("f", "f"), ("f", "c"), ("c", "c"))
        fits = loose and not hasattr(value, "dtype")
        if not (fits or forced or _casts(array, self.dtype)):
            if array.dtype.kind not in "biufc" and self.dtype.kind in "biufc":
                raise TypeError(f"{self!r} got {why_not(value, self.dtype)}")
            advice = f"np.asarray(value, '{self.dtype}')"
            if array.dtype.kind == "c":
                advice = "value.real"
            raise TypeError(
                f"{self!r} holds {self.dtype}, and {array.dtype} cannot be cast to it"
                f" without loss: pass {advice}, or make the data with force_cast=True"
            )
        return array.astype(self.dtype)

    def _window(self) -> Window:
        """Describe the array to the ranks."""
        window = self._lending.window
        if window is None:
            array = self._held()
            assert self._segment is not None
            window = self._lending.window = self._segment.window(array)
        return window


_states = itertools.count()


INHERITED.append(Data)


class Lending:
    """The arrays on a `Data`'s memory that the script was given (*lent*).

    They tell whether values may have changed, without a comparison of values. A script
    can write to the memory only through an array that the `Data` gave it. Each such
    array is new, and lies right on the memory, so numpy makes it the base of every view
    of it, and a view keeps it alive. While a lent array lives, the values may change at
    any time; when all are gone, they stay as they are.
    """

    def __init__(self) -> None:
        self.window: Window | None = None  # describes the array to other processes
        # Whether the memory has the rows of this machine's ranks only; see
        # `files.on_nodes`.
        self.is_partial = False
        self._forks = forks_by_script()
        self._state = next(_states)
        self._alive: weakref.WeakValueDictionary[int, np.ndarray]
        self._alive = weakref.WeakValueDictionary()

    def lend(self, array: np.ndarray) -> np.ndarray:
        """Note that the script is given `array`, and return it.

        `array` must not be a view of another array, which would be the base of views.
        """
        state = next(_states)
        # In this order: see `state`.
        self._alive[state] = array
        self._state = state
        return array

    @property
    def state(self) -> int | None:
        """A number for the present values, which no others have, in any memory.

        None if they may be written to at any time: the script has a lent array, or has
        forked a child, whose writes would not be seen here.
        """
        # Another thread may get an array between any two lines. `_state` is read first:
        # if it is the number of the newest array, that array is in `_alive` while it
        # lives; if it is an older number, it matches no later state.
        state = self._state
        if self._alive or forks_by_script() != self._forks:
            return None
        return state


def any_partial(values: Iterable[Any]) -> bool:
    """Return whether a `Data` among `values` has only this machine's ranks' rows."""
    return any(type(each) is Data and each._lending.is_partial for each in values)


def _as_array(
    what: object, value: Any, dtype: np.dtype, forced: bool = False
) -> np.ndarray:
    """Return a value as an array; it may have dtype object only if `forced`.

    `what` (the receiver) and `dtype` are for error messages.
    """
    if isinstance(value, Data):
        return value.data
    if type(value) is not np.ndarray:
        refuse_masked(what, value)
    # numpy would take the keys of some mappings, and NaN for missing values.
    if isinstance(value, Mapping) or has_missing(value):
        raise TypeError(f"{what} got {why_not(value, dtype)}")
    try:
        array = np.asarray(table_as_array(value))
    except ORDINARY as error:
        raise TypeError(f"{what} got {why_not(value, dtype) or error}") from None
    if array.dtype.hasobject and not (forced and array.ndim):
        got = why_not(value, dtype) or f"{array.dtype} values: pass numbers"
        raise TypeError(f"{what} got {got}")
    return array


def _casts(array: np.ndarray, dtype: np.dtype) -> bool:
    """Return whether a cast of `array` to `dtype` keeps every value.

    Integers are judged by their values, as a list of Python's integers becomes int64.
    """
    if np.can_cast(array.dtype, dtype, "safe"):
        return True
    if array.dtype.kind not in "iu" or dtype.kind not in "iufc":
        return False
    if array.size == 0:
        return True
    lowest, highest = int(array.min()), int(array.max())
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return limits.min <= lowest and highest <= limits.max
    exact = 2 ** (np.finfo(dtype).nmant + 1)
    return -exact <= lowest and highest <= exact


def _check_shape(shape: Any) -> tuple[int, ...]:
    shape = (shape,) if isinstance(shape, int) else shape
    shape = tuple(operator.index(n) for n in shape)
    if any(n < 0 for n in shape):
        raise ValueError(f"a shape has no negative lengths, got {shape}")
    return shape


def _check_oversize(oversize: float) -> float:
    if not oversize >= 1:
        raise ValueError(f"oversize must be at least 1, got {oversize}")
    return oversize
