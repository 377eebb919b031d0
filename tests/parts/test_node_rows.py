"""What nodes keep of data: node 0 and others in one process, with commands at random.

The messages are those of real commands, with no MPI between the two ends: bytes are
copied from one to the other, or get lost as by an interrupt, or find no room.
"""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from synk.call.rows import Source, take_share
from synk.call.runs import Call, worker_run
from synk.cluster.inbox import Copy, Inbox, to_keep
from synk.cluster.keeping import Draft, Keeping
from synk.cluster.message import Here, Message
from synk.cluster.node import Node
from synk.cluster.translate import unpickled
from synk.errors import SharedMemoryFull, SynkError
from synk.memory.arena import Arena
from synk.memory.partition import cuts
from synk.memory.segment import Attachments, Segment
from synk.memory.unchanged import WATCHED
from synk.ranks.context import Notice
from synk.ranks.to_nodes import arrived, for_nodes

RANKS = [2, 1, 3]
SIZE = sum(RANKS)
HERES = [Here(0, 0, 2, SIZE), Here(1, 2, 3, SIZE), Here(2, 3, 6, SIZE)]
LOTS = 1 << 30


class Held:
    """Data of a script, whose changes are seen."""

    states = iter(range(10**9))

    def __init__(self, array: np.ndarray) -> None:
        self.segment = Segment(array.nbytes)
        self.array = self.segment.array(array.dtype, array.shape)
        self.array[...] = array
        self.window = self.segment.window(self.array)
        self.state: int | None = next(self.states)
        self.is_partial = False
        WATCHED[self.segment.key] = self

    def write(self) -> None:
        self.array += 1
        self.state = next(self.states)


class World:
    """Node 0 and two others."""

    def __init__(self, room: int = LOTS) -> None:
        attachments = Attachments()
        programs = SimpleNamespace(cut=lambda *_: SimpleNamespace(inputs_read=()))
        self.context: Any = SimpleNamespace(
            array=lambda given: (
                attachments.array(given) if isinstance(given, tuple) else given
            ),
            size=SIZE,
            comm=SimpleNamespace(ranks=RANKS),
            registry=SimpleNamespace(functions={0: programs}),
        )
        self.keeping = Keeping(room)
        self.stage, self.stages = Arena(), [Arena() for _ in RANKS]
        self.inboxes = [Inbox(stage.room) for stage in self.stages]
        self.notices: list[Notice] = []
        self.data = [b""] * len(RANKS)
        self.by_key: dict[tuple, np.ndarray] = {}

    def run(
        self, batches: list, inputs: list, is_lost: bool = False, full: int = 0
    ) -> int:
        """Have all ranks take the rows of calls; return the bytes that were sent.

        Parameters
        ----------
        batches : list of (slice or numpy.ndarray)
        inputs : list of (Held or numpy.ndarray)
        is_lost : bool
            Whether the command is not sent in the end.
        full : int
            Which node has no memory for it, if it is not 0.
        """
        copies = [each for each in inputs if isinstance(each, np.ndarray)]
        copies += [batch for batch in batches if isinstance(batch, np.ndarray)]
        staged = iter(self.stage.put(copies))
        # What follows from the rows of slices may be kept: see `Source`.
        keeps = all(isinstance(batch, slice) for batch in batches)
        sources = [
            tuple(Source(each.window, 0, False, each.state if keeps else None))
            if isinstance(each, Held)
            else tuple(Source(next(staged), 0, False))
            for each in inputs
        ]
        calls, right = [], []
        for batch in batches:
            if isinstance(batch, slice):
                selection: Any = batch.start, batch.stop
                rows = np.arange(*selection)
            else:
                selection, rows = next(staged), batch
            calls.append(Call(selection, cuts(len(rows), SIZE), None))
            right.append(rows)
        args = (7, 0, (), calls, sources, [], 1, [], None, None)
        draft = Draft(self.keeping)
        notices = tuple(self.notices)
        out = for_nodes(worker_run, args, notices, 7, self.context, draft)
        if is_lost:
            return 0
        self.keeping.sent(draft)
        self.notices.clear()
        words = [0]
        for here, inbox in zip(HERES[1:], self.inboxes[1:], strict=True):
            message = Message.unpacked(out.message)
            arrays = inbox.make_room(message, here)
            if full == here.node:
                inbox.error = SharedMemoryFull("by the test")
            given = [*out.common, *out.rows[here.node]]
            for array, each in zip(arrays, given, strict=True):
                assert (array.dtype, array.shape) == (each.dtype, each.shape)
                array[...] = each
            nodes = [Node("a", n, n) for n in RANKS]
            words.append(inbox.word(nodes, here.node))
            if inbox.error is not None:
                continue
            named = inbox.windows, inbox.sent, inbox.copies
            data = self.data[here.node] = message.data or self.data[here.node]
            _, _, theirs, _ = unpickled(data, *named)
            self.check(
                arrived(worker_run, theirs, here, inbox.copies), here, right, inputs
            )
        self.keeping.told(words)
        return sum(a.nbytes for a in out.common) * 2 + sum(
            a.nbytes for some in out.rows for a in some
        )

    def check(self, args: tuple, here: Here, right: list, inputs: list) -> None:
        """Check the rows that the ranks of a node take."""
        _, _, _, calls, sources, *_ = args
        assert len(calls) == len(right)
        for call, rows in zip(calls, right, strict=True):
            assert call.bounds == cuts(len(rows), SIZE)
            for rank in range(here.first, here.stop):
                mine = rows[call.bounds[rank] : call.bounds[rank + 1]]
                given = call.selection, call.bounds, call.sources or sources
                arrays, chosen = take_share(rank, self.context.array, *given)
                for i, each in enumerate(inputs):
                    whole = each.array if isinstance(each, Held) else each
                    taken, state = arrays[i][chosen[i]], given[2][i][3]
                    np.testing.assert_array_equal(taken, whole[mine])
                    if state is not None:  # it tells these rows from all others
                        key = rank, state, chosen[i].start, chosen[i].stop
                        before = self.by_key.setdefault(key, taken.copy())
                        np.testing.assert_array_equal(taken, before)


def batches_of(generator: random.Random, rows: int) -> list:
    found: list = []
    for _ in range(generator.randrange(1, 5)):
        start = generator.randrange(rows)
        stop = generator.choice([rows, start, min(rows, start + 7)])
        by_number = np.array(generator.choices(range(rows), k=generator.randrange(9)))
        found.append(generator.choice([slice(start, stop), by_number.astype(int)]))
    return generator.choice([found, found * 3])


@pytest.mark.parametrize("room", [0, 2000, LOTS])
def test_all_ranks_get_their_rows_whatever_comes_in_between(room):
    generator, world = random.Random(room), World(room)
    values = np.random.default_rng(0)
    made = 0

    def data(width: int) -> Held:
        return Held(values.normal(size=(40, width)).astype(values.choice(["f4", "f8"])))

    held = [data(3), data(1), data(0), data(9)]
    known = [batches_of(generator, 40) for _ in range(6)]
    for _ in range(150):
        chance = generator.random()
        if chance < 0.1:
            generator.choice(held).write()
        elif chance < 0.12:
            i = generator.randrange(4)
            world.notices.append(Notice("segment", held[i].segment.key))
            held[i] = data(generator.randrange(5))
        elif chance < 0.15:
            each = generator.choice(held)
            each.state = None if each.state is not None else next(Held.states)
        elif chance < 0.2:
            known[generator.randrange(6)] = batches_of(generator, 40)
        inputs: list = generator.choices(held, k=generator.randrange(1, 4))
        if generator.random() < 0.3:
            inputs.append(values.normal(size=(40, 2)))
        full = generator.choice([1, 2]) if generator.random() < 0.03 else 0
        is_lost = generator.random() < 0.2
        world.run(generator.choice(known), inputs, is_lost, full)
        if full:
            world.keeping.room, world.keeping._is_full = room, False
        made += not is_lost
        # Nodes have what node 0 knows them to have, and no more of it.
        numbers = {copy.number for copy in world.keeping.copies.values() if copy.nbytes}
        for inbox in world.inboxes[1:]:
            there = set(inbox.copies) - set(world.keeping.forgotten)
            assert numbers <= there
            assert len(there) <= 4 + len(world.notices)
    assert made > 90


@pytest.mark.parametrize("full", [1, 2])
def test_where_a_node_finds_no_room_all_give_that_up_and_keep_no_more(full):
    world = World()
    w, x, y = (Held(np.full((60, 4), value)) for value in (1.0, 2.0, 3.0))
    assert world.run([slice(0, 60)], [w]) > 0
    own = world.run([slice(0, 60)], [x], full=full)
    assert world.keeping.room == 0
    for each in (x, y, x, y):
        assert world.run([slice(0, 60)], [each]) == own
    assert world.run([slice(0, 60)], [w]) == 0  # as before
    assert [len(inbox.copies) for inbox in world.inboxes[1:]] == [1, 1]
    assert not world.keeping.forgotten


def test_nodes_of_one_machine_share_the_half_of_its_memory():
    nodes = [Node("a", 1, 1), Node("b", 1, 1), Node("a", 1, 1)]
    assert [to_keep(1000, 0, nodes, i) for i in range(3)] == [250, 500, 250]
    # What is kept counts as free: it is never more than half in all.
    assert to_keep(750, 250, nodes, 0) == 1
    assert to_keep(600, 400, nodes, 1) == 100


@pytest.mark.parametrize("nodes", [2, 1000])
def test_the_message_is_as_long_for_any_number_of_nodes(nodes):
    world = World()
    world.context.size, world.context.comm.ranks = nodes * 8, [8] * nodes
    x = Held(np.zeros((8000, 2)))
    calls = [Call((0, 8000), cuts(8000, nodes * 8), None)] * 5
    args = (7, 0, (), calls, [(x.window, 0, False, None)], [], 1, [], None, None)
    draft = Draft(world.keeping)
    out = for_nodes(worker_run, args, (), 7, world.context, draft)
    assert len(out.message) < 1000
    assert len(out.rows) == nodes
    assert {sum(a.nbytes for a in some) for some in out.rows[1:]} == {
        8000 * 16 // nodes
    }


def test_rows_that_node_0_has_not_are_never_sent():
    """As of files: other nodes have read them, or whoever wants them is refused."""
    half = slice(0, 20)
    for room in (0, LOTS):
        world, held = World(room), Held(np.arange(80.0).reshape(40, 2))
        held.is_partial = True
        for batches in ([half], [np.arange(3)], [slice(0, 40)] * 9):
            with pytest.raises(SynkError, match="read from files"):
                world.run(batches, [held])
        draft = Draft(world.keeping)
        number = draft.has_got(held.segment.key, held.state, {(0, 20): 7 * 16})
        world.keeping.sent(draft)
        for here, inbox in zip(HERES[1:], world.inboxes[1:], strict=True):
            copy = inbox.copies[number] = Copy(np.dtype("f8"), (2,))
            start, stop = here.rows(20)
            copy.add(stop - start)[...] = held.array[start:stop]
            copy.starts[0, 20] = 0
        assert world.run([half], [held]) == 0
        assert world.run([half] * 3, [held]) == 0
        for batches in ([slice(0, 21)], [half, np.arange(3)]):
            with pytest.raises(SynkError, match="read from files"):
                world.run(batches, [held])
        held.state = next(Held.states)
        with pytest.raises(SynkError, match="read from files"):
            world.run([half], [held])
