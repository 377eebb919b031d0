"""The plan of a function's calls: engine, block, and all ranks or rank 0 alone.

Rules choose the plan from the graph, the number of rows, and the numbers of ranks and
cores. They use no clock and no history, so a script gives the same bits in every run.
Only a record of `synk.tune` (`records`) is measured, and overrides the rules. The rules
are a table in docs/modes.rst, which says how the numbers in them were set.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..engines import ENGINES, engine_named
from .engine import Kind
from .work import READ, Work

# Seconds
LAUNCH = 60e-6  # of a launch: from the command to the last reply, without computing
MEETING = 15e-6  # of a reduction of few numbers
REDUCED = 0.4e-9  # per byte reduced: to write it to shared memory, add and read it
ADDED = 0.6e-9  # per byte of a block's sums: to write and add it
CALL = 10e-6  # of the shortest call of plain PyTensor
SHORT = 0.5e-3  # of a call on one core for which JAX's dispatch matters
# A call that takes one core less has a single block: several ranks would wait for each
# other longer than they compute.
ONE_BLOCK = 100e-6
OF_BLOCK = 40e-6  # the least of a block: to go on to the next block takes about 1e-6

# Factors
SERIAL_OF_PRODUCTS = 0.025  # the part of a product in BLAS or XLA that one thread does
# How much longer common values, such as new parameters, take on all ranks at once, as
# these share the memory's bandwidth.
CROWDED = 1.5
CLEARLY = 0.95  # rank 0 alone must be predicted to take less of all ranks' time
# The least time of a block, as a multiple of the time to add its sums, if these have
# more bytes than `SUMMED`, and to read the matrices that its rows are multiplied by.
OF_LARGE = 3
UNEVEN = 1.05  # the time of the slowest of several tasks side by side, over the mean

# Bytes and rows
# The most bytes of a block, counting its rows and what one Op reads and writes: they
# fit a core's second-level cache.
BYTES_OF_BLOCK = 1 << 20
SUMMED = 1 << 16  # the most bytes of sums for which there are blocks: each writes them
ALL = 1 << 62  # the rows of a block that holds all rows of any call
# The number of blocks of a call, if that makes them long enough: a number that ranks
# share evenly. The second is for a call whose work is not known.
BLOCKS, FEW_BLOCKS = 64, 16
# The fewest rows for which ranks keep terms of the data alone. With fewer rows it is
# faster to compute the terms again.
KEPT_FROM = 10_000
FEW_KEPT = 1 << 16  # the bytes that kept terms may always have, with few rows as well


@dataclass(frozen=True)
class PlanFacts:
    """The facts from which rules choose a plan."""

    engines: tuple[str, ...]  # to choose from; none if no choice is open
    kind: Kind
    is_of_data: bool  # whether there are no broadcast inputs or shared variables
    may_be_alone: bool  # whether rank 0 alone gives the same results as all ranks
    rows: int  # of a call, all ranks' together, approximately
    row_bytes: int  # of one row of all scattered inputs
    summed: int | None  # bytes of all sums over rows; None if unknown
    work: Work | None  # of a call; None if unknown
    ranks: int
    cores: int  # of all ranks together
    has_any_bits: bool = False  # whether the script has asked for bits="any"


@dataclass(frozen=True)
class Plan:
    """How calls of a function are made."""

    engine: str | None = None  # None: the mode that the script has named, or PyTensor's
    is_alone: bool = False  # whether rank 0 makes calls alone, with all cores
    block: int = 0  # rows of a block; 0: each rank computes its rows at once
    why: str = ""  # the reason for the choice, for explanations
    in_one_go: str = ""  # the reason if there are no blocks

    @property
    def name(self) -> str:
        """The plan's name, which no other plan of the function has."""
        block = f"blocks of {self.block:,} rows" if self.block else None
        if self.block == ALL:
            block = "one block"
        parts = self.engine, block, "rank 0 alone" if self.is_alone else None
        return ", ".join(part for part in parts if part)

    def __str__(self) -> str:
        return ": ".join(part for part in (self.name, self.why) if part)


def choose(facts: PlanFacts) -> Plan:
    """Return the plan that the rules choose."""
    engine, why = _engine(facts)
    block = block_of(facts, engine)
    plan = Plan(engine, False, block, why, why_in_one_go(facts, engine))
    if not facts.engines or not facts.may_be_alone or facts.ranks == 1:
        return plan
    if facts.is_of_data and facts.rows >= KEPT_FROM:
        return replace(plan, why=f"{why}; all ranks: it is cached")
    if facts.work is None:
        return replace(plan, why=f"{why}; all ranks: how long it takes is not known")
    together, alone = together_and_alone(facts, engine)
    is_alone = alone < CLEARLY * together  # in doubt, all ranks
    who = "rank 0 alone" if is_alone else "all ranks"
    chosen, other = (alone, together) if is_alone else (together, alone)
    predicted = f"predicted {chosen * 1e3:.3g} ms beside {other * 1e3:.3g}"
    return replace(plan, is_alone=is_alone, why=f"{why}; {who}: {predicted}")


def plans_of(facts: PlanFacts) -> list[Plan]:
    """Return all possible plans, the one that `choose` returns first."""
    plan = choose(facts)
    found = {plan.name: plan}
    may_be_alone = facts.may_be_alone and facts.ranks > 1
    for engine in facts.engines:
        most = block_of(facts, engine)
        for block in {most} if facts.has_any_bits else {most, 0}:
            for is_alone in (False, True) if may_be_alone else (False,):
                plan = Plan(engine, is_alone, block)
                found.setdefault(plan.name, plan)
    return list(found.values())


def _engine(facts: PlanFacts) -> tuple[str | None, str]:
    engines = facts.engines
    if not engines:
        return None, ""
    looping = next((each for each in engines if ENGINES[each].HAS_BLOCKS), None)
    other = next((each for each in engines if not ENGINES[each].HAS_BLOCKS), None)
    if facts.kind == "vectors" and looping:
        return looping, "by elements, a number or a few a row"
    if facts.kind == "matrices" and looping:
        work = facts.work
        if work and work.products + work.elements + work.common < SHORT:
            return looping, "by elements, and short"
        if block_of(facts, looping):
            return looping, "by elements, in blocks"
    if other and facts.kind != "vectors":
        return other, "rows by columns"
    return engines[0], "the one that there is for it"


def block_of(facts: PlanFacts, engine: str | None) -> int:
    """Return the rows of a block, a power of two; 0 if there are no blocks.

    It does not depend on the number of ranks, so that the bits do not either.
    """
    if why_in_one_go(facts, engine):
        return 0
    rows, work = facts.rows, facts.work
    if work is None:
        return min(_power(rows / FEW_BLOCKS), _power(BYTES_OF_BLOCK / facts.row_bytes))
    seconds = work.products + work.elements
    if seconds < ONE_BLOCK:
        return ALL
    added = facts.summed if facts.summed and facts.summed > SUMMED else 0
    dear = OF_LARGE * (ADDED * added + READ * work.factors)
    if added:
        return _power(dear / seconds * rows)
    in_cache = _power(BYTES_OF_BLOCK / (facts.row_bytes + 2 * (work.widest // rows)))
    long_enough = _power(OF_BLOCK / seconds * rows)
    at_most = min(in_cache, max(long_enough, _power(rows / BLOCKS)))
    return max(at_most, _power(dear / seconds * rows))


def why_in_one_go(facts: PlanFacts, engine: str | None) -> str:
    """Return why there are no blocks; an empty string if there are."""
    if not engine_named(engine).HAS_BLOCKS:
        return f"{engine or 'this mode'} goes through all rows of a rank at once"
    if not facts.row_bytes or facts.summed is None:
        return "it is not known how much is added up for each row"
    if not facts.summed:
        return "nothing is added up over rows"
    if facts.summed > SUMMED and not facts.has_any_bits:
        return f"more than {SUMMED >> 10} KiB are added up"
    return ""


def _power(number: float) -> int:
    """Return the largest power of two up to `number`, at least 1."""
    return 1 << max(int(number), 1).bit_length() - 1


def are_kept(rows: int, row_bytes: int, kept: int | None) -> bool:
    """Return whether ranks keep terms of the data alone, of `kept` bytes in all."""
    if rows < KEPT_FROM or kept is None:
        return False
    return kept <= max(FEW_KEPT, rows * row_bytes)


def together_and_alone(facts: PlanFacts, engine: str | None) -> tuple[float, float]:
    """Return the predicted seconds of a call by all ranks, and by rank 0 alone.

    Each rank computes values of its own rows, of whole blocks if there are blocks, and
    all values that depend on no row.
    """
    work, costs = facts.work, engine_named(engine).costs
    assert work is not None

    def at(threads: int) -> tuple[float, float]:
        """Return the time of products and of elements, relative to one thread."""
        serial = SERIAL_OF_PRODUCTS, costs.serial
        products, elements = (part + (1 - part) / threads for part in serial)
        return products, elements

    elements, common = costs.slower * work.elements, costs.slower * work.common
    of_products, of_elements = at(max(facts.cores // facts.ranks, 1))
    mine = work.products * of_products + elements * of_elements
    meeting = MEETING * work.meetings + REDUCED * work.reduced
    blocks = -(-facts.rows // (block_of(facts, engine) or 1)) or 1
    share = -(-blocks // facts.ranks) / blocks  # of the rank that has most
    launch = LAUNCH if facts.ranks > 1 else 0.0
    together = launch + costs.dispatch + mine * share + meeting
    together += CROWDED * common * of_elements
    of_products, of_elements = at(facts.cores)
    alone = work.products * of_products + (elements + common) * of_elements
    return together, costs.dispatch + alone


class Predicted(NamedTuple):
    """The predicted seconds of a call."""

    by_ranks: float  # by the plan that the rules choose
    by_pytensor: float  # of the plain function on one core
    serial: float  # of the plain function with all cores, used for products of matrices
    is_alone: bool  # whether rank 0 makes the call alone, by the chosen plan


def predict(facts: PlanFacts) -> Predicted | None:
    """Return the predicted seconds of a call, or None if its work is not known."""
    work = facts.work
    if work is None:
        return None
    plan = choose(facts)
    engine = plan.engine or ("numba" if facts.kind == "vectors" else None)
    together, alone = together_and_alone(facts, engine)
    costs = engine_named(engine).costs
    elements = costs.slower * (work.elements + work.common)
    elements += work.dear * (costs.pytensor_exp_factor - 1)
    by_pytensor = CALL + work.products + elements
    of_all_cores = SERIAL_OF_PRODUCTS + (1 - SERIAL_OF_PRODUCTS) / facts.cores
    serial = CALL + work.products * of_all_cores + elements
    by_ranks = alone if plan.is_alone else together
    return Predicted(by_ranks, by_pytensor, serial, plan.is_alone)


# -- tasks on groups of ranks


class GroupPlan(NamedTuple):
    """How tasks, such as chains, are laid on groups of ranks."""

    at_once: int  # the number of groups: tasks that run side by side
    ranks: int  # of each group
    seconds: float | None  # predicted for one call of every task; None if unknown


def plan_groups(
    tasks: int,
    at_most: int,
    ranks: int,
    cores: int,
    seconds: Callable[[int, int], float | None],
) -> GroupPlan:
    """Return how independent tasks are laid on ranks.

    Fewer ranks spend less time in meetings, but tasks side by side do not end at the
    same time. ``seconds(ranks, cores)`` are those of a call by that many ranks, with
    that many cores together; if they are None, tasks run one after the other.
    """
    found = []
    for at_once in range(1, max(min(tasks, at_most, cores), 1) + 1):
        share = cores // at_once
        each = max(min(ranks // at_once, share), 1)  # ranks without cores take turns
        of_call = seconds(each, share)
        if of_call is None:
            break
        rounds = -(-tasks // at_once) * (UNEVEN if at_once > 1 else 1)
        found.append(GroupPlan(at_once, each, rounds * of_call))
    if not found:
        return GroupPlan(1, ranks, None)
    return min(found, key=lambda plan: plan.seconds or 0.0)
