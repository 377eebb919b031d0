"""What an explanation says, as data; its text, HTML and pictures are made from it.

Times are in milliseconds, sizes in bytes. What is not known is None. A line of the
user's is as `made_in` has it: "fit.py:12: `loss = ...`".
"""

from __future__ import annotations

from dataclasses import dataclass, field

# -- the plan: what a call is going to do


@dataclass(frozen=True)
class Input:
    """An input, with its type as users read it, such as "float64 (?, 3)"."""

    name: str
    type: str


@dataclass(frozen=True)
class Bits:
    """On what the bits of a value depend: "any ranks" or "these ranks", and why so."""

    on: str
    why: str | None


@dataclass(frozen=True)
class Output:
    """An output, how it is combined, and what was shown of it."""

    name: str  # such as "output 0 (loss)"
    op: str | None  # None: rank 0's own value
    named: bool  # by the user
    kind: str  # of function of the rows
    agrees: bool  # whether that needs `op`
    reason: str | None  # why nothing could be shown
    made: str | None  # the user's line that made it
    reason_made: str | None  # and that of what is in the way
    combined: str  # where
    bits: Bits | None  # None before the first call


@dataclass(frozen=True)
class Reduced:
    """A value that the ranks combine at the end of a stage, or have of all by then.

    `op` is one of all-reduce; "gather", the rows of all ranks; or "read", those of an
    input, which each rank reads where they lie. `bytes` are the result's, of a gather
    in the call that compiled it.
    """

    name: str
    op: str
    dtype: str
    bytes: int | None
    made: str | None
    why: str  # "for Sub", "for the new value of w"
    why_made: str | None  # the line of what needs it, or else of what goes into that


@dataclass(frozen=True)
class StageFacts:
    """A stage: what it computes, and what the ranks combine when they have."""

    computes: str  # "on rows", "on every rank" or "nothing"
    lines: list[str]  # the user's, of which it computes something
    repeats: list[str]  # Ops that every rank computes from all rows
    outputs: list[str]
    updates: list[str]  # shared variables whose new values it computes
    reduces: list[Reduced]
    bytes: dict[str, int | None]  # that are reduced, by dtype


@dataclass(frozen=True)
class Origin:
    """A value, or the Op that makes it, and the user's line that made it."""

    name: str
    made: str | None


@dataclass(frozen=True)
class Repeated:
    """What every rank computes from all rows.

    It begins at the Ops `by`, which need all rows at once. So many Ops on rows are
    repeated, of how many there are; views, shapes and numbers are not counted.
    """

    by: list[Origin]
    ops: int
    of: int
    bytes: int | None  # of the rows that are gathered
    milliseconds: float | None
    """What every rank computes alike in a call, this and all else; None if it is not
    known, as where the same stages compute on a rank's own rows, too."""


@dataclass(frozen=True)
class Update:
    """A shared variable that is updated."""

    name: str
    type: str
    from_own_rows: bool
    bits: Bits | None


@dataclass(frozen=True)
class PaddingFacts:
    """Whether calls are padded, or else why not."""

    padded: bool
    reason: str | None


@dataclass(frozen=True)
class DrawFacts:
    """Random numbers for rows, which are those of the serial run.

    Ranks draw for their "own rows", where what is drawn for others' is skipped, or JAX
    draws by place; or for "all rows", of which each keeps its own.
    """

    name: str
    made: str | None
    ranks_draw: str


@dataclass(frozen=True)
class Held:
    """Shared variables that the ranks hold in one way.

    The script has set values so often that each rank got them, and so many bytes.
    """

    names: list[str]
    state: str  # such as "replicated, since it was set in the script"
    times_brought: int
    bytes_brought: int


@dataclass(frozen=True)
class PlanTimes:
    """What `synk.tune` has measured of a plan."""

    name: str  # the engine, blocks of rows if any, and whether rank 0 computes alone
    is_best: bool  # it makes the calls
    milliseconds: float | None  # of a call
    first_call: float | None  # seconds of the first one, which compiles
    failed: str | None  # why it could make no call


# -- the times of calls


@dataclass(frozen=True)
class RankTimes:
    """One rank's mean times in a call; `share` is its rows, on average.

    `compute` includes `common`, which every rank computes. In `nodes` the masters of
    several nodes exchange values and combine them; until these have met, it is `wait`.
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
    """Calls that were counted, and their means; `ranks` is empty if there were none."""

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
    """Calls that rank 0 has made alone, and their means."""

    counted: int
    left_out: int
    rows: float
    milliseconds: float


@dataclass(frozen=True)
class InBlocks:
    """How rank 0 has gone through the rows of the last call: by machine code or not."""

    blocks: int
    is_compiled: bool


@dataclass(frozen=True)
class Exchanged:
    """What the master of a node exchanges with those of others in a call, on average.

    `meeting` is the time until all masters have met, `milliseconds` what it takes from
    then on, and `bytes` what it sends.
    """

    times: float
    bytes: int
    meeting: float
    milliseconds: float


@dataclass(frozen=True)
class NodeFacts:
    """One of several nodes; nothing is `exchanged` before a call has been counted."""

    host: str
    ranks: int
    exchanged: Exchanged | None


@dataclass(frozen=True)
class ExchangesOfRank:
    """One rank's exchanges under a training rule: their number, and means of them."""

    rank: int
    exchanges: int
    milliseconds: float
    wait: float  # milliseconds of these, for others
    waits: int  # longer than 20 us, for a lock or for all to meet
    staleness: float  # by how many moves of the centre its parameters were old
    most_stale: int


@dataclass(frozen=True)
class Exchanges:
    """Exchanges of parameters, of so many bytes, under a training rule.

    They are those of rank 0 alone if the session has ended.
    """

    rule: str
    bytes: int
    ranks: list[ExchangesOfRank]


# -- what follows from the times


@dataclass(frozen=True)
class Serial:
    """A run of the plain function."""

    milliseconds: float
    rows: int
    cores: int


@dataclass(frozen=True)
class Facts:
    """Everything that is known of a function; the attributes are the dict's keys."""

    name: str
    ranks: int | None
    inputs: dict[str, list[Input]]
    """By what ranks get of them: "scattered", "broadcast", "sliceable"."""
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
    """How many times as fast as one rank a call is: "predicted" and "measured"."""
    lost: dict[str, float] | None
    """What a call takes beyond its share of the work, by cause; see `losses`."""
    verdict: str | None
    variables: list[Held]
    plan: str  # how calls are made, and why; see `choice.plan`
    plans: list[PlanTimes]  # what `synk.tune` has measured
    calls_alone: CallsAlone | None
    in_blocks: InBlocks | None
    bytes_kept: int  # of terms of the data alone, on rank 0
    draws: list[DrawFacts]
    exchanges: Exchanges | None
    nodes: list[NodeFacts]  # of several; of one machine there are none
