"""Which engine makes the next call: the policy, played with made-up times."""

from __future__ import annotations

import contextlib
import random

import pytest

from synk.choice import comparison
from synk.choice.comparison import ENOUGH, compare
from synk.choice.trial import (
    GAIN,
    MOST,
    NEAR,
    ROUNDS,
    RUNS,
    SHARE,
    SHARE_OF_LIKELY,
    SHORT,
    Candidate,
    Trial,
)


def play(trial: Trial, seconds: dict[str, float], compiling: dict[str, float], until):
    """Play calls that take each engine so long; return the time, and who made them."""
    clock, made = 0.0, []
    while clock < until:
        turn = trial.turn()
        made.append(turn.name)
        taken = seconds[turn.name]
        first = turn.compiled is None
        if first:
            taken += compiling[turn.name]
        trial.note(turn, taken, rows=10, has_compiled=first)
        clock += taken
    return clock, made


def candidates(compiling: dict[str, float]) -> list[Candidate]:
    return [Candidate(name, expected) for name, expected in compiling.items()]


COMPILING = {"JAX": 0.4, "C": 1.5, "numba": 2.0}


@pytest.mark.parametrize("best", COMPILING)
def test_the_fastest_makes_the_calls_in_the_end(best):
    seconds = dict.fromkeys(COMPILING, 0.03) | {best: 0.02}
    trial = Trial(candidates(COMPILING))
    _, made = play(trial, seconds, COMPILING, until=120)
    assert trial.is_over
    assert trial.best.name == best
    assert set(made[-100:]) == {best}
    assert made[0] == "JAX"  # which compiles fastest
    dropped = {each.name for each in trial.candidates if each.dropped is not None}
    assert dropped == COMPILING.keys() - {best}


def test_trying_costs_a_small_share_when_the_first_was_the_best():
    seconds = {"JAX": 0.02, "C": 0.3, "numba": 0.021}
    trial = Trial(candidates(COMPILING))
    clock, made = play(trial, seconds, COMPILING, until=60)
    alone = COMPILING["JAX"] + len(made) * seconds["JAX"]
    # What is spent was within the share when it was begun.
    assert clock - alone <= SHARE * clock
    assert trial.best.name == "JAX"
    # What is much slower, here 15 times, makes two calls: one compiles.
    assert made.count("C") <= 2


def test_one_slow_call_does_not_drop_what_is_faster():
    """Another program may have run meanwhile."""
    for slow_calls, best in ((0, "B"), (1, "B"), (3, "B"), (MOST, "A")):
        trial = Trial(candidates({"A": 0.0, "B": 0.0}))
        calls = 0
        while not trial.is_over:
            turn = trial.turn()
            first = turn.compiled is None
            calls += turn.name == "B" and not first
            is_slow = turn.name == "B" and not first and calls <= slow_calls
            taken = 1.0 if turn.name == "A" else 1.7 if is_slow else 0.8
            trial.note(turn, taken, has_compiled=first)
        assert trial.best.name == best, slow_calls


def test_rank_0_alone_gets_another_call_where_the_first_was_slow():
    together = Candidate("A", 0.0)
    alone = Candidate("alone", 0.0, after=together)
    trial = Trial([together, alone])
    together.times.append(1.0)
    assert trial.drop_if_slow(alone, [3.9])
    assert not trial.drop_if_slow(alone, [3.9, 2.9])
    assert alone.dropped is None
    assert not trial.drop_if_slow(alone, [3.9, 3.1])
    assert alone.dropped == "slower"
    alone.dropped = None
    assert not trial.drop_if_slow(alone, [4.1])
    assert alone.dropped == "slower"


def test_what_was_slow_for_a_while_is_timed_again():
    """A tenth of a second in which another program runs hits three calls in a row."""
    trial = Trial(candidates({"A": 0.0, "B": 0.0, "C": 0.0}))
    for each, times in zip(
        trial.candidates,
        ([2.2, 2.3, 2.2], [4.0, 3.9, 2.0], [2.6, 2.7, 2.8]),
        strict=True,
    ):
        each.times.extend(times)
    assert [each.name for each in trial.close()] == ["A", "B"]
    assert [each.name for each in trial.close(within=1.5)] == ["A", "B", "C"]
    trial.candidates[1].times.extend([2.0] * 6)
    trial.settle()
    assert trial.best.name == "B"


def test_nothing_is_tried_before_it_is_affordable():
    trial = Trial(candidates({"JAX": 0.0, "C": 10.0}))
    _, made = play(
        trial, {"JAX": 0.1, "C": 0.01}, {"JAX": 0, "C": 10}, until=10 / SHARE - 1
    )
    assert set(made) == {"JAX"}
    assert not trial.is_over
    play(trial, {"JAX": 0.1, "C": 0.01}, {"JAX": 0, "C": 10}, until=20)
    assert trial.best.name == "C"


@pytest.mark.parametrize("of_overhead", [0.9, 1.1])
def test_more_may_be_spent_where_calls_are_little_but_overhead(of_overhead):
    overhead = 1e-4
    seconds = {"JAX": SHORT * overhead * of_overhead, "C": 2e-5, "numba": 1e-5}
    trial = Trial(
        [
            Candidate("JAX", 0.0, overhead=overhead),
            *candidates({"C": 2.0, "numba": 2.0}),
        ]
    )
    compiling = {"JAX": 0.0, "C": 2.0, "numba": 2.0}
    share = SHARE_OF_LIKELY if of_overhead < 1 else SHARE
    _, made = play(trial, seconds, compiling, until=2.0 / share - 0.1)
    assert set(made) == {"JAX"}
    play(trial, seconds, compiling, until=2.2)
    assert trial.best.name == "C"
    # It is none of C's: numba is tried as ever.
    _, made = play(trial, seconds, compiling, until=1.0)
    assert set(made) == {"C"}


def test_more_may_be_spent_on_what_is_likely_to_be_faster():
    trial = Trial(candidates({"JAX": 0.0, "C": 2.0, "numba": 4.0}))
    trial.candidates[2].is_likely = True
    seconds = {"JAX": 0.1, "C": 0.09, "numba": 0.01}
    compiling = {"JAX": 0.0, "C": 2.0, "numba": 4.0}
    _, made = play(trial, seconds, compiling, until=4.0 / SHARE_OF_LIKELY - 0.1)
    assert set(made) == {"JAX"}
    play(trial, seconds, compiling, until=5.0)
    assert trial.best.name == "numba"
    _, made = play(trial, seconds, compiling, until=1.0)
    assert set(made) == {"numba"}  # C is tried as ever


@pytest.mark.parametrize("calls", [19, 21])
def test_calls_that_are_to_come_count(calls):
    cost = 0.1 * 20 * SHARE
    trial = Trial(candidates({"JAX": 0.0, "C": cost}))
    trial.foreseen = calls
    seconds, compiling = {"JAX": 0.1, "C": 0.001}, {"JAX": 0.0, "C": cost}
    _, made = play(trial, seconds, compiling, until=1.0)
    assert set(made) == ({"JAX"} if calls < 20 else {"JAX", "C"})


def test_one_slow_call_does_not_count_for_all_that_are_to_come():
    trial = Trial(candidates({"JAX": 0.0, "C": 10.0}))
    trial.foreseen = 1000  # of 100 ms: 100 s, of which 5 % are not enough
    trial.note(trial.best, 1.0, rows=1, has_compiled=True)
    for seconds in (0.1, 3.0, 0.1):
        assert trial.turn() is trial.best
        trial.note(trial.best, seconds, rows=1)
    assert trial.turn() is trial.best
    trial.foreseen = 2100
    assert trial.turn().name == "C"


def test_it_waits_until_another_is_affordable():
    trial = Trial(candidates({"JAX": 0.0, "C": 1.0, "numba": 3.0}))
    seconds, compiling = {"JAX": 0.1, "C": 0.2, "numba": 0.01}, {"JAX": 0.0, "C": 1.0}
    assert not trial.is_waiting
    waited = 0
    while trial.candidates[1].compiled is None:
        was_waiting, turn = trial.is_waiting, trial.turn()
        assert not was_waiting or turn is trial.best
        waited += was_waiting
        first = turn.compiled is None
        taken = seconds[turn.name] + first * compiling[turn.name]
        trial.note(turn, taken, rows=10, has_compiled=first)
    assert 190 <= waited <= 200  # of 20 seconds
    assert trial.is_comparing
    assert not trial.is_waiting
    trial.drop(trial.candidates[1], "failed")
    assert not trial.is_waiting
    trial.turn()
    assert trial.is_waiting


def test_what_earlier_runs_computed_counts():
    trial = Trial(candidates({"JAX": 0.0, "C": 10.0}), computed=10 / SHARE, spent=1)
    seconds, compiling = {"JAX": 0.1, "C": 0.01}, {"JAX": 0.0, "C": 10.0}
    _, made = play(trial, seconds, compiling, until=1 / SHARE - 1)
    assert "C" not in made
    _, made = play(trial, seconds, compiling, until=15)
    assert "C" in made


def test_two_take_turns_in_noise_that_lasts():
    generator = random.Random(0)
    right = 0
    for _ in range(50):
        trial = Trial(candidates({"A": 0.0, "B": 0.0}))
        noise = 1.0
        while not trial.is_over:
            turn = trial.turn()
            first = turn.compiled is None
            noise = 0.7 * noise + 0.3 * generator.uniform(1, 3)  # of other programs
            seconds = {"A": 0.010, "B": 0.007}[turn.name] * noise
            trial.note(turn, seconds, has_compiled=first)
        right += trial.best.name == "B"
    assert right >= 40


class Machine:
    """A machine whose calls take up to twice as long for a while, now and then."""

    def __init__(self, seed: int, share: float, lasting: float) -> None:
        self._random, self._share, self._lasting = random.Random(seed), share, lasting
        self.now = self._until = 0.0
        self._factor = 1.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def takes(self, seconds: float) -> float:
        """Return what something takes that is to take so long, and let that pass."""
        while self.now >= self._until:
            is_slow = self._random.random() < self._share
            self._factor = self._random.uniform(1.3, 2) if is_slow else 1.0
            self._until += self._random.expovariate(1 / self._lasting)
        taken = seconds * self._factor * self._random.uniform(1, 1.04)
        self.now += taken
        return taken


ENGINES = {"JAX": 0.0195, "C": 0.0198, "numba": 0.0262}
ALONE = {"JAX": 0.0172, "C": 0.0193, "numba": 0.0330}


def of_two_ranks() -> tuple[list[Candidate], dict[Candidate, float]]:
    """Return what may compute a training step, and what each call takes by it."""
    all_ranks = [Candidate(name, 0.5) for name in ENGINES]
    alone = [Candidate(f"{each.name} alone", 0.2, after=each) for each in all_ranks]
    found = [*all_ranks, *alone]
    return found, dict(zip(found, [*ENGINES.values(), *ALONE.values()], strict=True))


@pytest.mark.parametrize(("share", "lasting"), [(0.2, 0.5), (0.3, 2.0), (0.3, 0.1)])
@pytest.mark.parametrize("at_once", [False, True])
def test_the_fastest_of_six_is_found_while_the_machine_does_other_things(
    at_once, share, lasting, monkeypatch
):
    runs, right = 60, 0
    for seed in range(runs):
        machine = Machine(seed, share, lasting)
        found, seconds = of_two_ranks()
        trial = Trial(found)
        met = set()

        def taken(each, machine=machine, seconds=seconds, met=met) -> float:
            compiling = 0.0 if each in met else each.expected
            met.add(each)
            return machine.takes(compiling + seconds[each])

        if at_once:
            monkeypatch.setattr(comparison, "time", machine)
            compare(trial, 10, taken, lambda each: True, lambda error: None)
        while not trial.is_over:
            turn = trial.turn()
            has_compiled = turn not in met
            trial.note(turn, taken(turn), 10, has_compiled=has_compiled)
            assert machine.now < 600
        right += trial.best.name == "JAX alone"
    assert right >= 0.85 * runs


def test_what_is_close_is_looked_at_longer():
    def right(generator) -> bool:
        trial = Trial(candidates({"A": 0.0, "B": 0.0}))
        while not trial.is_over:
            turn = trial.turn()
            seconds = {"A": 1.06, "B": 1.0}[turn.name] * generator.uniform(1, 1.15)
            trial.note(turn, seconds, has_compiled=turn.compiled is None)
        return trial.best.name == "B"

    generator = random.Random(0)
    assert (
        sum(right(generator) for _ in range(1000)) >= 940
    )  # 903 with three calls each


@pytest.mark.parametrize(("alone", "best"), [(0.99, "A"), (0.95, "alone")])
@pytest.mark.parametrize("settled", [False, True])
def test_rank_0_alone_must_be_clearly_faster(alone, best, settled):
    together = Candidate("A", 0.0)
    trial = Trial([together, Candidate("alone", 0.0, after=together)])
    taken = {"A": 1.0, "alone": alone}
    if settled:
        for each in trial.candidates:
            each.times.append(taken[each.name])
        trial.settle()
    while not trial.is_over:
        turn = trial.turn()
        trial.note(turn, taken[turn.name], has_compiled=turn.compiled is None)
    assert trial.best.name == best


def test_rank_0_alone_compiles_in_less_than_the_first_call_of_all_ranks():
    # Of which a part was loading the engine, however long it may take to compile.
    together = Candidate("A", 4.0)
    trial = Trial([together, Candidate("alone", 4.0, after=together)])
    first, each = 1.0, 0.001
    compiling = {"A": first, "alone": first / 2}
    _, made = play(trial, {"A": each, "alone": each}, compiling, until=20)
    assert "alone" in made
    at = made.index("alone") * each
    assert (first / 2) / SHARE < at < (first / 2 + 3 * each) / SHARE + 1


@pytest.mark.parametrize("meeting", [GAIN / 2, 2 * GAIN])
def test_rank_0_alone_is_tried_soon_where_ranks_spend_much_on_meeting(meeting):
    together = Candidate("A", 0.0, meeting=meeting)
    trial = Trial([together, Candidate("alone", 4.0, after=together)])
    first, each = 1.0, 0.001
    compiling = {"A": first, "alone": first / 2}
    share = SHARE_OF_LIKELY if meeting > GAIN else SHARE
    _, made = play(trial, {"A": each, "alone": each}, compiling, until=20)
    at = made.index("alone") * each
    assert (first / 2) / share < at < 2 * (first / 2 + 3 * each) / share


def test_rank_0_alone_is_not_likely_where_others_are_far_faster():
    """Without its meetings an engine would still be slower than another."""
    slow, fast = Candidate("A", 0.0, meeting=0.3), Candidate("B", 0.0)
    alone = Candidate("alone", 1.0, after=slow)
    trial = Trial([slow, fast, alone])
    seconds = {"A": 1.4, "B": 0.9, "alone": 1.0}
    _, made = play(trial, seconds, dict.fromkeys(seconds, 1.0), until=30)
    assert trial.best is fast
    assert "alone" not in made


@pytest.mark.parametrize("times", [1 + (NEAR - 1) / 2, 2 * NEAR - 1])
def test_what_lost_by_little_may_be_tried_by_another_run(times):
    seconds, lost = {"A": 1.0, "B": times}, 0
    for run in range(RUNS):
        trial = Trial(candidates({"A": 0.0, "B": 0.0}))
        _, slower = trial.candidates
        slower.lost = lost
        play(trial, seconds, {"A": 0.0, "B": 0.0}, until=100)
        assert trial.best.name == "A"
        lost = slower.lost
        assert lost == (run + 1 if times < NEAR else RUNS)
        if lost == RUNS:
            break


def timed_at_once(
    machine: Machine, taken: dict[str, list[float]]
) -> tuple[Trial, dict[str, int]]:
    """Compare engines by calls that take so long, round by round; the last stays."""
    trial = Trial(candidates(dict.fromkeys(taken, 0.0)))
    made = dict.fromkeys(taken, 0)

    def call(each: Candidate) -> float:
        made[each.name] += 1
        machine.sleep(ENOUGH)  # a call gives a time
        turn = max(0, made[each.name] - 3) // (ROUNDS + 1)
        return taken[each.name][min(turn, len(taken[each.name]) - 1)]

    compare(trial, 10, call, lambda each: True, lambda error: None)
    return trial, made


def test_engines_that_are_timed_at_once_have_more_turns_while_it_is_in_doubt(
    monkeypatch,
):
    machine = Machine(seed=0, share=0.0, lasting=1.0)
    monkeypatch.setattr(comparison, "time", machine)
    for slower in (1.005, 1.1):  # as good, and clearly worse
        trial, made = timed_at_once(machine, {"A": [1.0], "B": [slower]})
        assert trial.best.name == "A"
        sure = made["A"]
    # Noise that lasts for three turns of five would decide for A.
    trial, made = timed_at_once(
        machine, {"A": [1.0], "B": [1.06, 1.06, 0.93, 0.93, 1.07, 0.93]}
    )
    assert trial.best.name == "B"
    assert made["A"] > sure
    assert [each.lost for each in trial.candidates] == [RUNS, 0]


@pytest.mark.parametrize("why", ["failed: no such Op", None])
def test_an_error_of_the_call_ends_a_comparison_and_one_of_an_engine_does_not(why):
    trial = Trial(candidates({"A": 0.0, "B": 0.0}))

    def call(each: Candidate) -> float:
        if each.name == "A":
            raise KeyError("x")
        return 0.1

    ends = contextlib.nullcontext() if why else pytest.raises(KeyError)
    with ends:
        compare(trial, 10, call, lambda each: True, lambda error: why)
    if why:
        assert trial.best.name == "B"
        assert trial.candidates[0].dropped == why


def test_what_goes_before_does_not_count_when_rank_0_goes_on_alone():
    together = Candidate("A", 0.0)
    trial = Trial([together, Candidate("alone", 0.0, after=together)])
    made, since = [], 1.0
    while not trial.is_over:
        turn = trial.turn()
        since = since + 0.01 if made and made[-1] == turn.name else 0.0
        made.append(turn.name)
        # What was before makes calls of all ranks slow for a while.
        slow = 0.01 if turn.name == "A" and since < 0.03 else 0.0
        seconds = {"A": 0.010, "alone": 0.011}[turn.name] + slow
        trial.note(turn, seconds, has_compiled=turn.compiled is None)
        assert len(made) < 10_000
    assert trial.best.name == "A"
    assert "alone" in made


def test_calls_of_other_sizes_are_compared_by_the_row():
    trial = Trial(candidates({"A": 0.0, "B": 0.0}))
    rows = 0
    while not trial.is_over:
        turn = trial.turn()
        rows = rows % 3 + 1
        each = {"A": 0.010, "B": 0.009}[turn.name]
        trial.note(turn, each * rows, rows, has_compiled=turn.compiled is None)
    assert trial.best.name == "B"


def test_an_engine_that_fails_is_left_out():
    trial = Trial(candidates({"A": 0.0, "B": 0.0, "C": 0.0}))
    assert trial.drop(trial.turn(), "failed: no such Op")
    assert trial.turn().name == "B"
    trial.note(trial.turn(), 1.0, has_compiled=True)
    for _ in range(2 * ROUNDS):
        if trial.turn().name == "C":
            break
        trial.note(trial.turn(), 1.0)
    assert trial.drop(trial.turn(), "failed: too")
    assert trial.turn().name == "B"
    assert trial.is_over
    assert not trial.drop(trial.turn(), "the last one")


def test_one_that_compiles_again_and_again_is_slow():
    trial = Trial(candidates({"A": 0.0, "B": 0.0}))
    while not trial.is_over:
        turn = trial.turn()
        again = turn.name == "A"
        seconds = 0.5 if again or turn.compiled is None else 0.01
        trial.note(turn, seconds, has_compiled=again or turn.compiled is None)
    assert trial.best.name == "B"


def test_what_may_yet_get_faster_is_not_judged_before():
    """Such calls are of an engine that tries ways of going through the rows."""
    trial = Trial(candidates({"JAX": 0.4, "numba": 1.0}))
    best, other = trial.candidates
    trial.note(best, 1.0, has_compiled=True)
    for _ in range(100):
        trial.note(best, 1.0)
    calls = 0
    while other.dropped is None and best.dropped is None:
        turn = trial.turn()
        calls += turn is other
        is_steady = turn is best or calls > 30
        taken = 1.0 if turn is best else 0.5 if is_steady else 1.9
        trial.note(turn, taken, has_compiled=calls == 1, is_steady=is_steady)
        assert calls < 100
    assert trial.best is other
    assert len(other.unsteady) == 29  # the first one has compiled
    # What it has cost is counted: compiling, and what these calls took beyond the best.
    assert trial.spent == pytest.approx(1.9 + 29 * 0.9)


def test_what_is_slower_by_far_is_dropped_though_it_may_get_faster():
    trial = Trial(candidates({"JAX": 0.4, "numba": 1.0}))
    best, other = trial.candidates
    trial.note(best, 1.0, has_compiled=True)
    for _ in range(100):
        trial.note(best, 1.0)
    calls = 0
    while other.dropped is None:
        turn = trial.turn()
        calls += turn is other
        taken = 1.0 if turn is best else 5.0
        trial.note(turn, taken, has_compiled=calls == 1, is_steady=turn is best)
        assert calls < 100
    assert calls == ROUNDS + 1
    assert trial.best is best
    assert trial.turn() is best


def test_nothing_is_tried_while_the_first_may_yet_get_faster():
    trial = Trial(candidates({"JAX": 0.4, "numba": 1.0}))
    best, other = trial.candidates
    trial.note(best, 1.0, has_compiled=True)
    for _ in range(1000):
        assert trial.turn() is best
        trial.note(best, 1.0, is_steady=False)
    for _ in range(2):
        trial.note(best, 0.5)
    assert trial.turn() is other
