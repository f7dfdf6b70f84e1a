"""What models do with their programs, seen at the executor that has them."""

from __future__ import annotations

from memcfg.runtime import Executor


class Seen:
    """A program that tells what is done with it."""

    def __init__(self, name, program, runs):
        self._name = name
        self._program = program
        self._runs = runs
        self._bound = False

    def __getattr__(self, name):
        return getattr(self._program, name)

    def bind(self, tensor, array):
        self._bound = self._program.bind(tensor, array)
        where = array.__array_interface__["data"][0]
        self._runs.bindings.append((self._name, where, self._bound))
        return self._bound

    def run(self, **options):
        self._runs.begun(self._name)
        if not self._bound:
            self._runs.copied.append(self._name)
        self._bound = False
        return self._program.run(**options)

    def finish(self):
        self._runs.ended(self._name)
        return self._program.finish()


class Runs:
    """What has been loaded, bound, copied and run, in order."""

    def __init__(self, monkeypatch):
        self.loads = []  # program names, sorted
        self.order = []  # loads and runs
        self.bindings = []  # program, address, and whether it is read there
        self.copied = []  # programs that ran with samples that were copied
        self._seen = {}
        load, prepare = Executor.load, Executor.prepare

        def noted_load(executor, graphs, *arguments, **options):
            self.loads.append(sorted(graphs))
            self.order.append(sorted(graphs))
            self.loading()
            return load(executor, graphs, *arguments, **options)

        def noted_prepare(executor, name):
            program = prepare(executor, name)
            if id(program) not in self._seen:
                self._seen[id(program)] = program, Seen(name, program, self)
            return self._seen[id(program)][1]

        monkeypatch.setattr(Executor, "load", noted_load)
        monkeypatch.setattr(Executor, "prepare", noted_prepare)

    def loading(self):
        """Do nothing; a test may."""

    def begun(self, name):
        """Note a run."""
        self.order.append(name)

    def ended(self, name):
        """Do nothing; a test may."""
