"""What masters say to one another: a thousand in one process, failing at random.

Each master is a generator of heads, as `Link` drives it; here all are driven together.
That nothing hangs means that all come to the end in as many rounds.
"""

from __future__ import annotations

import random

import pytest

from synk.cluster.heads import (
    COMMAND,
    IDLE,
    INLINE,
    JOIN,
    MEET,
    NBYTES,
    Head,
    Heads,
    Stopped,
    head,
    joining,
    meeting,
)


def test_a_head_is_64_bytes_and_comes_back():
    for data in (b"", b"x" * INLINE, b"y" * (INLINE + 1)):
        given = head(MEET, 7, data, word=-1)
        packed = given.packed()
        assert len(packed) == NBYTES == 64
        found = Head.unpacked(packed)
        assert found[:4] == (MEET, 7, -1, len(data))
        assert found.data == (data if len(data) <= INLINE else None)


def test_heads_of_all_say_what_each_says():
    said = [head(MEET, 7, b"x" * n, word=-n) for n in (0, 3, INLINE)]
    heads = Heads.of(said)
    assert len(heads) == 3
    assert [(each.kind, each.word, each.data) for each in heads] == [
        (each.kind, each.word, each.data) for each in said
    ]
    assert heads.data == [b"", b"xxx", b"x" * INLINE]
    assert heads.lengths == [0, 3, INLINE]
    assert heads.are_of_one_command
    assert heads.are_all(MEET)
    assert not heads.are_all(JOIN)
    assert not heads.agree_on(0)
    assert Heads.of(said[:1] * 2).agree_on(0)
    assert Heads.of([Head(JOIN), Head(JOIN)]).data == [b"", b""]
    long = head(JOIN, 8, b"y" * (INLINE + 1))
    mixed = Heads.of([*said, long])
    assert mixed.data is None
    assert not mixed.are_of_one_command
    assert not mixed.are_all(MEET)


def master(node: int, plan: list[list[int | None]], log: list):
    """Go through commands, each of some meetings; fail where the plan says so.

    Parameters
    ----------
    plan : list of list of (int or None)
        For each command, before which meeting each node fails; None for never. The last
        entry is the number of meetings.
    """
    for number, command in enumerate(plan):
        *failures, meetings = command
        yield Head(COMMAND if node == 0 else IDLE, number)
        made, failed = 0, False
        try:
            for k in range(meetings):
                if failures[node] == k:
                    failed = True
                    break
                yield from meeting(Head(MEET, number + 1, word=k))
                made += 1
        except Stopped:
            pass
        heads = yield from joining(head(JOIN, number + 1, bytes([failed])))
        log.append((number, node, made, failed, heads.data))


def drive(masters: list) -> int:
    """Give each master the heads of all, round by round; return how many there were."""
    said = [next(each) for each in masters]
    rounds = 0
    while said:
        rounds += 1
        assert len({each.number for each in said}) == 1, said
        kinds = {each.kind for each in said}
        # A command is begun by all, or by none; nobody meets who does not see it.
        assert kinds in ({IDLE, COMMAND}, {COMMAND}, {MEET}, {JOIN}, {MEET, JOIN})
        following, given = [], Heads.of(said)
        for each in masters:
            try:
                following.append(each.send(given))
            except StopIteration:
                continue
        assert len(following) in (0, len(masters)), "some have come to the end alone"
        said = following
    return rounds


@pytest.mark.parametrize(
    ("nodes", "commands"), [(1, 30), (2, 300), (3, 300), (1024, 10)]
)
def test_masters_stay_together_whoever_fails(nodes, commands):
    generator = random.Random(nodes)
    plan = []
    for _ in range(commands):
        meetings = generator.randrange(6)
        failures: list[int | None] = [None] * nodes
        for _ in range(generator.choice([0, 0, 1, 1, 2, 5])):
            failures[generator.randrange(nodes)] = generator.randrange(meetings + 1)
        plan.append([*failures, meetings])
    log: list = []
    rounds = drive([master(node, plan, log) for node in range(nodes)])
    assert len(log) == nodes * commands
    expected = 0
    for number, (*failures, meetings) in enumerate(plan):
        first = min(
            [k for k in failures if k is not None and k < meetings], default=None
        )
        of_command = [entry for entry in log if entry[0] == number]
        # All have made the same meetings: those before the first failure.
        made = meetings if first is None else first
        assert {entry[2] for entry in of_command} == {made}
        # Every node knows who failed, and nobody else did.
        failed = [bytes([failures[node] == first]) for node in range(nodes)]
        if first is None:
            failed = [b"\0"] * nodes
        assert all(entry[4] == failed for entry in of_command)
        # One round more where others met while somebody joined already.
        is_mixed = first is not None and b"\0" in failed
        expected += 1 + made + is_mixed + 1
    assert rounds == expected
