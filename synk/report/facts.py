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
class Inputs:
    """The inputs by what ranks get of them; sliceable shared variables are in here."""

    scattered: list[Input]
    broadcast: list[Input]
    sliceable: list[Input]


@dataclass(frozen=True)
class Bits:
    """On what the bits of a value depend: "any ranks" or "these ranks", and why so."""

    on: str
    why: str | None


@dataclass(frozen=True)
class Output:
    """An output, how it is combined, and what was shown of it.

    Attributes
    ----------
    name : str
        Such as "output 0 (loss)".
    op : str or None
        None: rank 0's own value. `named` says whether the user named it.
    kind : str
        What kind of function of the rows it is; `agrees` says whether that needs `op`.
    reason : str or None
        Why nothing could be shown.
    made, reason_made : str or None
        The user's line that made the output, and what is in the way.
    combined : str
        Where.
    bits : Bits or None
        None before the first call.
    """

    name: str
    op: str | None
    named: bool
    kind: str
    agrees: bool
    reason: str | None
    made: str | None
    reason_made: str | None
    combined: str
    bits: Bits | None = None


@dataclass(frozen=True)
class Reduced:
    """A value that the ranks combine at the end of a stage, or have of all by then.

    Attributes
    ----------
    op : str
        An op of all-reduce; "gather", the rows of all ranks; or "read", those of an
        input, which each rank reads where they lie.
    bytes : int or None
        Of the result; of a gather in the call that compiled it.
    made : str or None
        The user's line that made it.
    why : str
        What needs the value of all rows: "for Sub", "for the new value of w".
    why_made : str or None
        The user's line that made what needs it, or else what goes into that.
    """

    name: str
    op: str
    dtype: str
    bytes: int | None
    made: str | None
    why: str
    why_made: str | None


@dataclass(frozen=True)
class StageFacts:
    """A stage: what it computes, and what the ranks combine when they have done that.

    Attributes
    ----------
    computes : str
        What on: "on rows", "on every rank" or "nothing".
    lines : list of str
        The user's lines of which it computes something.
    repeats : list of str
        Ops that every rank computes from all rows.
    outputs, updates : list of str
        Outputs, and shared variables with new values, that it computes.
    bytes : dict of str to int or None
        Bytes that are reduced, by dtype.
    """

    computes: str
    lines: list[str]
    repeats: list[str]
    outputs: list[str]
    updates: list[str]
    reduces: list[Reduced]
    bytes: dict[str, int | None]


@dataclass(frozen=True)
class Origin:
    """A value, or the Op that makes it, and the user's line that made it."""

    name: str
    made: str | None


@dataclass(frozen=True)
class Repeated:
    """What every rank computes from all rows.

    Attributes
    ----------
    by : list of Origin
        Ops that need all rows at once: where it begins.
    ops, of : int
        How many Ops on rows every rank repeats, of how many there are. Views, shapes
        and numbers are not counted.
    bytes : int or None
        Of the rows that are gathered.
    milliseconds : float or None
        What every rank computes alike in a call, this and all else; None if it is not
        known, as where the same stages compute on a rank's own rows, too.
    """

    by: list[Origin]
    ops: int
    of: int
    bytes: int | None
    milliseconds: float | None


@dataclass(frozen=True)
class Update:
    """A shared variable that is updated."""

    name: str
    type: str
    from_own_rows: bool
    bits: Bits | None = None


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

    Attributes
    ----------
    state : str
        Such as "replicated, since it was set in the script".
    times_brought, bytes_brought : int
        How often each rank got values that the script had set, and how much in all.
    """

    names: list[str]
    state: str
    times_brought: int
    bytes_brought: int


@dataclass(frozen=True)
class PlanTimes:
    """What `synk.tune` has measured of a plan.

    Attributes
    ----------
    name : str
        The engine, blocks of rows if there are any, and whether rank 0 computes alone.
    is_best : bool
        Whether it makes the calls.
    milliseconds : float or None
        Of a call; None if it could make none.
    first_call : float or None
        Seconds of the first one, which compiles.
    failed : str or None
        Why it could make no call.
    """

    name: str
    is_best: bool
    milliseconds: float | None
    first_call: float | None
    failed: str | None


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
    exchanged: Exchanged | None = None


@dataclass(frozen=True)
class ExchangesOfRank:
    """One rank's exchanges under a training rule.

    Attributes
    ----------
    milliseconds, wait : float
        What one takes on average, and how much of that it waits for others.
    waits : int
        How often it has waited for longer than 20 us, for a lock or for all to meet.
    staleness : float
        How many moves of the centre its parameters were old on average.
    """

    rank: int
    exchanges: int
    milliseconds: float
    wait: float
    waits: int
    staleness: float
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
class SpeedUp:
    """How many times as fast as one rank a call is."""

    predicted: float | None = None
    measured: float | None = None


@dataclass(frozen=True)
class Lost:
    """What a call takes beyond its share of the work, by cause; see `losses`."""

    launch: float
    uneven: float
    reduce: float
    repeated: float
    parts: float
    nodes: float = 0.0


@dataclass(frozen=True)
class Conclusions:
    """What follows from the times."""

    speed_up: SpeedUp = field(default_factory=SpeedUp)
    lost: Lost | None = None
    verdict: str | None = None


@dataclass(frozen=True)
class Facts:
    """Everything that is known of a function; the attributes are the dict's keys."""

    name: str
    ranks: int | None
    inputs: Inputs
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
    speed_up: SpeedUp
    lost: Lost | None
    verdict: str | None
    variables: list[Held] = field(default_factory=list)
    plan: str = ""
    """How calls are made, and why; see `choice.plan`."""
    plans: list[PlanTimes] = field(default_factory=list)
    """What `synk.tune` has measured."""
    calls_alone: CallsAlone | None = None
    in_blocks: InBlocks | None = None
    bytes_kept: int = 0
    """Of terms of the data alone, on rank 0."""
    draws: list[DrawFacts] = field(default_factory=list)
    exchanges: Exchanges | None = None
    nodes: list[NodeFacts] = field(default_factory=list)
    """Of several; of one machine there are none."""
