"""The contents of an explanation as data, for its text, dict, HTML and pictures.

Times are in milliseconds, sizes in bytes. None stands for an unknown value. A line of
the script has the form of `made_in`: "fit.py:12: `loss = ...`".
"""

from __future__ import annotations

from dataclasses import dataclass, field

# -- the plan: what a call does


@dataclass(frozen=True)
class Input:
    """An input, with its type as users read it, such as "float64 (?, 3)"."""

    name: str
    type: str


@dataclass(frozen=True)
class Bits:
    """Whether the bits of a value depend on the number of ranks, and why.

    `on` is "any ranks" (they do not) or "these ranks" (they do).
    """

    on: str
    why: str | None


@dataclass(frozen=True)
class Output:
    """An output, how it is combined, and what the proof says about it."""

    name: str  # such as "output 0 (loss)"
    op: str | None  # None: rank 0's own value
    named: bool  # whether the script named the op
    kind: str  # the kind of function of the rows, such as "a mean over the rows"
    agrees: bool  # whether `op` is right for that kind
    reason: str | None  # why the proof found no kind
    made: str | None  # the line that made the output
    reason_made: str | None  # the line of the variable named in `reason`
    combined: str  # when: "combined in a stage" or "combined after the call"
    bits: Bits | None  # None before the first call


@dataclass(frozen=True)
class Reduced:
    """A value that the ranks combine at the end of a stage.

    `op` is an op of all-reduce; or "gather", for the rows of all ranks; or "read", for
    all rows of an input, which each rank reads in place. `bytes` are the result's; for
    a gather those of the call that compiled it.
    """

    name: str
    op: str
    dtype: str
    bytes: int | None
    made: str | None
    why: str  # "for Sub", "for the new value of w"
    why_made: str | None  # the line of the Op that needs it, or the nearest above it


@dataclass(frozen=True)
class StageFacts:
    """A stage: what it computes, and what the ranks combine at its end."""

    computes: str  # "on rows", "on every rank" or "nothing"
    lines: list[str]  # lines of the script whose variables it computes
    repeats: list[str]  # Ops that every rank computes from all rows
    outputs: list[str]
    updates: list[str]  # shared variables whose new values it computes
    reduces: list[Reduced]
    bytes: dict[str, int | None]  # reduced bytes, by dtype


@dataclass(frozen=True)
class Origin:
    """A value, or the Op that makes it, and the line of the script."""

    name: str
    made: str | None


@dataclass(frozen=True)
class Repeated:
    """The computation that every rank repeats from all rows.

    It begins at the Ops `by`, which need all rows at once. `ops` of `of` Ops on rows
    are repeated, not counting views, shapes and constants.
    """

    by: list[Origin]
    ops: int
    of: int
    bytes: int | None  # of the gathered rows
    milliseconds: float | None
    """The time of everything that all ranks compute alike in a call. None if unknown:
    for example if a stage also computes on a rank's own rows."""


@dataclass(frozen=True)
class Update:
    """A shared variable that the function updates."""

    name: str
    type: str
    from_own_rows: bool
    bits: Bits | None


@dataclass(frozen=True)
class PaddingFacts:
    """Whether synk pads calls, and why not."""

    padded: bool
    reason: str | None


@dataclass(frozen=True)
class DrawFacts:
    """Random numbers for rows, equal to those of the serial run.

    `ranks_draw` is "own rows" if ranks skip the numbers of other ranks' rows, or JAX
    draws by index; or "all rows" if every rank draws all, and keeps its own.
    """

    name: str
    made: str | None
    ranks_draw: str


@dataclass(frozen=True)
class Held:
    """Shared variables that the ranks hold in the same way.

    `times_brought` counts the values set by the script that were sent to each rank, and
    `bytes_brought` their bytes.
    """

    names: list[str]
    state: str  # such as "replicated, since it was set in the script"
    times_brought: int
    bytes_brought: int


@dataclass(frozen=True)
class PlanTimes:
    """What `synk.tune` has measured of a plan."""

    name: str  # the engine, blocks of rows if any, and whether rank 0 computes alone
    is_best: bool  # whether later calls use this plan
    milliseconds: float | None  # of a call
    first_call: float | None  # seconds of the first call, which compiles
    failed: str | None  # why the plan could make no call


# -- the times of calls


@dataclass(frozen=True)
class RankTimes:
    """One rank's mean times in a call; `share` is its mean number of rows.

    `compute` includes `common`, the work that every rank repeats. `nodes` is the time
    in which the masters of several nodes exchange and combine values; the time until
    they have met counts as `wait`. `node` is the number of the rank's node.
    """

    rank: int
    share: float
    rows: float
    compute: float
    common: float
    wait: float
    reduce: float
    nodes: float = 0.0
    node: int = 0


@dataclass(frozen=True)
class Calls:
    """Counted calls, and their means. Without counted calls `ranks` is empty.

    `left_out` calls followed a compilation. `milliseconds` is the mean time of a call.
    """

    counted: int
    left_out: int
    all_ranks_known: bool
    rows: float | None = None
    scattered_bytes: int | None = None
    reduced_bytes: int | None = None
    milliseconds: float | None = None
    ranks: list[RankTimes] = field(default_factory=list)


@dataclass(frozen=True)
class CallsAlone:
    """Calls that rank 0 has made alone, and their means; see `Calls`."""

    counted: int
    left_out: int
    rows: float
    milliseconds: float


@dataclass(frozen=True)
class InBlocks:
    """The blocks of rows of the last call on rank 0, and whether their loop is code."""

    blocks: int
    is_compiled: bool


@dataclass(frozen=True)
class Exchanged:
    """A node's exchanges with other nodes in a call, by its master, on average.

    `times` is their number, `meeting` the time until all masters have met,
    `milliseconds` the time after that, and `bytes` what the master sends.
    """

    times: float
    bytes: int
    meeting: float
    milliseconds: float


@dataclass(frozen=True)
class NodeFacts:
    """One of several nodes; `exchanged` is None before a counted call."""

    host: str
    ranks: int
    exchanged: Exchanged | None


@dataclass(frozen=True)
class ExchangesOfRank:
    """One rank's exchanges under a training rule: their number, and their means."""

    rank: int
    exchanges: int
    milliseconds: float  # of an exchange
    wait: float  # milliseconds of that in which it waited for other ranks
    waits: int  # number of waits over 20 us, for a lock or for all to meet
    staleness: float  # moves of the centre since the rank got its parameters
    most_stale: int  # the most such moves


@dataclass(frozen=True)
class Exchanges:
    """Exchanges of parameters under a training rule; `bytes` is the parameters' size.

    `ranks` has rank 0 alone if the session has ended.
    """

    rule: str
    bytes: int
    ranks: list[ExchangesOfRank]


# -- conclusions from the times


@dataclass(frozen=True)
class Serial:
    """The serial run: a timed call of the plain function."""

    milliseconds: float
    rows: int
    cores: int


@dataclass(frozen=True)
class Facts:
    """All facts about a function; the attributes are the keys of `to_dict`."""

    name: str
    ranks: int | None
    inputs: dict[str, list[Input]]
    """By kind: "scattered", "broadcast" and "sliceable"."""
    outputs: list[Output]
    stages: list[StageFacts]
    repeated: Repeated | None
    own_statistics: list[Origin]
    updates: list[Update]
    precision: str | None
    padding: PaddingFacts | None
    shapes_compiled: int | None
    calls: Calls | None
    serial: Serial | None
    speed_up: dict[str, float | None]
    """One rank's time over that of a call, "predicted" and "measured"."""
    lost: dict[str, float] | None
    """Milliseconds of a call beyond its share of the work, by cause; see `losses`."""
    verdict: str | None
    variables: list[Held]
    plan: str  # the plan of calls, and why, in words; see `choice.plan`
    plans: list[PlanTimes]  # measured by `synk.tune`
    calls_alone: CallsAlone | None
    in_blocks: InBlocks | None
    bytes_kept: int  # of terms of the data alone, on rank 0
    draws: list[DrawFacts]
    exchanges: Exchanges | None
    nodes: list[NodeFacts]  # empty on one machine
