"""`synk.function`: compiled graphs that run on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from pytensor.compile import SharedVariable
from pytensor.graph.traversal import ancestors, applys_between

from ..ops import COLLECTIVES
from ..ranks.session import SESSION
from ..reduce_ops import OutputOp
from ..report.explain import explain
from ..report.explanation import Explanation
from ..user_frames import entry
from .inputs import bind, build
from .many import Runs


class Function(Runs):
    """A graph that runs on every rank; made by :func:`synk.function`."""

    @property
    def name(self) -> str | None:
        """The name given, if any."""
        return self._spec.name

    @property
    def output_modes(self) -> list[OutputOp]:
        """How each output is combined: the ops, in the order of the outputs."""
        return list(self._spec.output_ops)

    @property
    def update_modes(self) -> list[OutputOp]:
        """How each update is combined over slices, in the order of the updates."""
        return list(self._spec.update_ops[: len(self._spec.plain_updates)])

    @property
    def updated(self) -> list[SharedVariable]:
        """The shared variables that a call updates, in the order of the updates."""
        return [var for var, _ in self._spec.plain_updates]

    def get_shared(self) -> list[SharedVariable]:
        """Return the shared variables that a call reads or updates.

        Returns
        -------
        list of SharedVariable
        """
        spec = self._spec
        graph = [*spec.plain_outputs, *(new for _, new in spec.plain_updates)]
        found = dict.fromkeys([*self.updated, *spec.sliceable, *ancestors(graph)])
        return [var for var in found if isinstance(var, SharedVariable)]

    @property
    def is_local(self) -> bool:
        """Whether each rank computes by itself: made with `local=True`."""
        return self._spec.is_local

    @property
    def reduces(self) -> bool:
        """Whether a call combines values of all ranks on its way."""
        outputs = [*self._spec.outputs, *[new for _, new in self._spec.updates]]
        nodes = applys_between([], outputs)
        return any(isinstance(node.op, COLLECTIVES) for node in nodes)

    @property
    def has_rows(self) -> bool:
        """Whether it has scattered inputs."""
        return bool(self._spec.inputs)

    def __repr__(self) -> str:
        inputs = ", ".join(map(str, self._inputs))
        return f"<synk.Function {self.name or self._number}({inputs})>"

    @entry
    def as_theano(self, *args: Any, **kwargs: Any) -> Any:
        """Run on rank 0 alone, on all rows: the plain function, for comparison.

        Its updates are made in the script's variables, all of them or, if it fails,
        none; the other ranks get the new values when they need them, as of those that
        the script sets.

        Parameters
        ----------
        *args, **kwargs : Data or array_like
            The inputs, as in a call.

        Returns
        -------
        numpy.ndarray or list of numpy.ndarray or None
        """
        if SESSION.state == "worker":
            SESSION.check_running()
        values = bind(self, self._inputs, args, kwargs)
        programs = self._plans.last.replicas.local()
        run = partial(self._serial.run_programs, programs, values)
        results = self._held.in_master(run, self._serial.overwritten(programs))
        return self._all.arrange(results)

    @entry
    def explain(
        self,
        *args: Any,
        measure: bool = False,
        batch: Any = None,
        graph: bool = False,
        **kwargs: Any,
    ) -> Explanation:
        """Tell what a call does and, after calls, where its time goes.

        Parameters
        ----------
        measure : bool
            Run the plain function as well, some times, and compare. This changes
            nothing, and takes a compilation.
        *args, batch, **kwargs
            With `measure`, the inputs and the batch, as in a call.
        graph : bool
            Draw the stages of a call, and where ranks meet, in place of the times.

        Returns
        -------
        Explanation
        """
        if SESSION.state == "worker":
            SESSION.check_running()
        if measure:
            values = bind(self, self._inputs, args, kwargs)
            self._serial.measure(values, batch)
        elif args or kwargs or batch is not None:
            raise TypeError("explain takes the arguments of a call with measure=True")
        title = self.name or f"function {self._number}"
        present = self._plans.last.replicas
        known = present.local(), present.are_there, self._serial.timed
        held, plan = self._held.facts(), str(self._plans.last.plan)
        plans = plan, self._plans.measured
        return explain(title, self._spec, *known, held, plans, graph)

    @entry
    def build_inputs(
        self,
        *args: Any,
        minibatch: bool | Sequence[bool] = False,
        force_cast: bool | Sequence[bool] = False,
        oversize: float | Sequence[float] = 1,
        **kwargs: Any,
    ) -> Any:
        """Put arrays into new :class:`~synk.Data` of the inputs' types.

        Parameters
        ----------
        *args, **kwargs : array_like
            A value for every input, broadcast ones too, as in a call. Broadcast inputs
            may be left out, all of them.
        minibatch, force_cast, oversize
            As for :func:`synk.data`: one value for all inputs, or a list of one for
            each. Of broadcast inputs `minibatch` means nothing.

        Returns
        -------
        Data or tuple of Data
            One for each value; by itself if there is one only.

        Raises
        ------
        TypeError, ValueError
            If a value does not fit its input, or a list has another length.
        """
        spec = self._spec
        broadcast = {var.name for var in spec.bcast_inputs}
        more = len(args) + len(kwargs) > len(spec.inputs)
        inputs = self._inputs if more or broadcast & kwargs.keys() else spec.inputs
        values = bind(self, inputs, args, kwargs)
        return build(inputs, values, minibatch, force_cast, oversize)
