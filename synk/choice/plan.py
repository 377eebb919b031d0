"""The plan of a function's calls: what computes them, and how; chosen by rules.

A plan follows from the graph, the number of rows, and the ranks and cores: no clock has
a say in it, and nothing of what was before. So a script has the same bits in every run.
What is measured is measured by `synk.tune`, which leaves a record (`records`), and that
decides then. The rules are a table in docs/modes.rst, which says how the numbers in
them were set.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..engines import ENGINES, engine_named
from .engine import Kind
from .work import READ, Work

# Seconds
LAUNCH = 60e-6  # to have ranks begin, and to hear that all have ended
MEETING = 15e-6  # of a reduction of few numbers
REDUCED = 0.4e-9  # of a byte that is reduced: written to shared memory, added, and read
ADDED = 0.6e-9  # in which a block's byte of what is added up is written, and added
CALL = 10e-6  # that a call of plain PyTensor takes at least
SHORT = 0.5e-3  # of one core up to which JAX's dispatch is much of a call
# Of one core up to which all rows of a call are one block: more ranks would wait longer
# for each other than they compute.
ONE_BLOCK = 100e-6
OF_BLOCK = 40e-6  # of a block at the least: to go on to the next takes about 1e-6

# Factors
SERIAL_OF_PRODUCTS = 0.025  # of products by BLAS and XLA, what is not divided
# What all ranks compute at once, as new values of parameters, takes so many times as
# long: they share the memory that it goes through.
CROWDED = 1.5
CLEARLY = 0.95  # of the time of all ranks, what rank 0 alone must take at most
# A block takes at least so many times as long as to add up what it gives, where that is
# more than `SUMMED`; and as to read the matrices that its rows are multiplied with.
OF_LARGE = 3
UNEVEN = 1.05  # how much longer the slowest of several tasks side by side takes

# Bytes and rows
# Of a block, its rows and what an Op reads and writes of it: what a core's second-level
# cache holds.
BYTES_OF_BLOCK = 1 << 20
SUMMED = 1 << 16  # that blocks may add up: each writes as many
ALL = 1 << 62  # rows of a block that has those of any call
# Blocks of a call, where they take long enough: as many as ranks can share evenly; and
# of a call of which nothing is known.
BLOCKS, FEW_BLOCKS = 64, 16
# From so many rows on terms of the data alone are cached: of fewer they are computed
# again in less time than it takes to ask for them.
KEPT_FROM = 10_000
FEW_KEPT = 1 << 16  # that such terms may take, of however few rows they are


@dataclass(frozen=True)
class PlanFacts:
    """What a plan follows from."""

    engines: tuple[str, ...]  # to choose from; none where the script has said it
    kind: Kind
    is_of_data: bool  # whether all that is computed follows from the rows alone
    may_be_alone: bool  # whether rank 0 by itself gives what all ranks do together
    rows: int  # about how many a call has
    row_bytes: int  # of one row of all inputs
    summed: int | None  # bytes of all sums over rows; None if they do not follow
    work: Work | None  # of a call; None if it does not follow
    ranks: int
    cores: int  # of the machine, that the ranks share
    has_any_bits: bool = False  # whether the script says that all goes in blocks


@dataclass(frozen=True)
class Plan:
    """How calls of a function are made."""

    engine: str | None = None  # None: the mode that the script has named, or PyTensor's
    is_alone: bool = False  # whether rank 0 makes them, by itself and with all cores
    block: int = 0  # rows of one; 0: each rank goes through its rows at once
    why: str = ""
    in_one_go: str = ""  # why there are no blocks

    @property
    def name(self) -> str:
        """What tells it from the other plans of a function."""
        block = f"blocks of {self.block:,} rows" if self.block else None
        if self.block == ALL:
            block = "one block"
        parts = self.engine, block, "rank 0 alone" if self.is_alone else None
        return ", ".join(part for part in parts if part)

    def __str__(self) -> str:
        return ": ".join(part for part in (self.name, self.why) if part)


def choose(facts: PlanFacts) -> Plan:
    """Return the plan of a function's calls."""
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
    is_alone = alone < CLEARLY * together  # near ties go to all ranks
    who = "rank 0 alone" if is_alone else "all ranks"
    chosen, other = (alone, together) if is_alone else (together, alone)
    predicted = f"predicted {chosen * 1e3:.3g} ms beside {other * 1e3:.3g}"
    return replace(plan, is_alone=is_alone, why=f"{why}; {who}: {predicted}")


def plans_of(facts: PlanFacts) -> list[Plan]:
    """Return all plans that are possible, that of the rules first."""
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
    """Return the rows of a block, 0 where values are not combined by blocks.

    A power of two, which follows from the rows of a call and what they are, and not
    from ranks: these have the same bits, however many they are.
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
    """Say why there are no blocks; nothing if there are."""
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
    """Return the largest power of two that is not larger, or 1."""
    return 1 << max(int(number), 1).bit_length() - 1


def are_kept(rows: int, row_bytes: int, kept: int | None) -> bool:
    """Tell whether so many bytes of terms of the data alone are cached."""
    if rows < KEPT_FROM or kept is None:
        return False
    return kept <= max(FEW_KEPT, rows * row_bytes)


def together_and_alone(facts: PlanFacts, engine: str | None) -> tuple[float, float]:
    """Return the seconds that a call is predicted to take all ranks, and rank 0 alone.

    A rank computes its part of what is of rows, in whole blocks if it goes by these;
    what no row enters all of them do.
    """
    work, costs = facts.work, engine_named(engine).costs
    assert work is not None

    def at(threads: int) -> tuple[float, float]:
        """Return what of their time products and elements take then."""
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
    """The seconds of a call, as far as a graph and its sizes tell."""

    by_ranks: float  # by the plan of the rules
    by_pytensor: float  # of the plain function on one core
    # Of the plain function in a process that has all cores, which it uses for products
    # of matrices.
    serial: float
    is_alone: bool  # whether rank 0 makes the call, by that plan


def predict(facts: PlanFacts) -> Predicted | None:
    """Return the seconds of a call, or None if they do not follow."""
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
    """So many tasks at once, as chains, each by a group of so many ranks."""

    at_once: int
    ranks: int  # if it is one at once, of those that have a core
    seconds: float | None  # that a call of every task takes, where that follows


def plan_groups(
    tasks: int,
    at_most: int,
    ranks: int,
    cores: int,
    seconds: Callable[[int, int], float | None],
) -> GroupPlan:
    """Return how tasks that never meet are laid on ranks.

    Calls by few ranks meet sooner than calls by many, and tasks side by side end one
    before the other. `seconds` are those of a call by so many ranks that have so many
    cores together; without them tasks are computed one after the other.
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
