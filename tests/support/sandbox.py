"""A sandbox as containers have it: system calls that are forbidden."""

import ctypes
import platform
from collections.abc import Sequence

_X86 = {
    "memfd_create": 319,
    "pidfd_open": 434,
    "fallocate": 285,
    "sched_setaffinity": 203,
    "sched_getaffinity": 204,
}
_ARM = {
    "memfd_create": 279,
    "pidfd_open": 434,
    "fallocate": 47,
    "sched_setaffinity": 122,
    "sched_getaffinity": 123,
}
NUMBERS = {"x86_64": _X86, "aarch64": _ARM}.get(platform.machine(), {})

_SET_NO_NEW_PRIVS, _SET_SECCOMP, _FILTER = 38, 22, 2
_LOAD, _IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


class _Instruction(ctypes.Structure):
    """``struct sock_filter``."""

    _fields_ = (
        ("code", ctypes.c_ushort),
        ("if_true", ctypes.c_ubyte),
        ("if_false", ctypes.c_ubyte),
        ("k", ctypes.c_uint),
    )


class _Program(ctypes.Structure):
    """``struct sock_fprog``."""

    _fields_ = (
        ("length", ctypes.c_ushort),
        ("instructions", ctypes.POINTER(_Instruction)),
    )


def forbid(calls: Sequence[str], number: int) -> None:
    """Have system calls fail with an errno, in this process and all that it starts."""
    program = [_Instruction(_LOAD, 0, 0, 0)]  # the number of the call
    for call in calls:
        program += [
            _Instruction(_IF_EQUAL, 0, 1, NUMBERS[call]),
            _Instruction(_RETURN, 0, 0, _ERRNO | number),
        ]
    program.append(_Instruction(_RETURN, 0, 0, _ALLOW))
    array = (_Instruction * len(program))(*program)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "PR_SET_NO_NEW_PRIVS")
    made = _Program(len(program), array)
    if libc.prctl(_SET_SECCOMP, _FILTER, ctypes.byref(made), 0, 0):
        raise OSError(ctypes.get_errno(), "PR_SET_SECCOMP")
