"""Pages of the API reference: a module a page, every exported name once.

Other modules that export a name list it, with a link. The docstrings are rendered here,
since autodoc takes minutes for as many; memcfg.torch is read with a stand-in for
PyTorch, which the site need not install.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import sys
from enum import Enum
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from docstrings import HTML, Docstrings
from pygments import highlight
from pygments.lexers import PythonLexer
from signatures import signature
from stand_in import stand_in_for_torch

import memcfg

if TYPE_CHECKING:
    from collections.abc import Iterator


class Entry(NamedTuple):
    """A name that is documented on the page of a module."""

    module: str
    name: str
    kind: str  # "class", "function", "data"; of a member "method", "attribute"

    @property
    def full(self) -> str:
        return f"{self.module}.{self.name}"

    @property
    def url(self) -> str:
        return f"{self.module}.html#{self.full}"


def stage_reference(folder: Path) -> list[Entry]:
    """Write the sources of all pages of the reference, and return its names."""
    stand_in_for_torch()
    folder.mkdir(parents=True)
    reference = Reference()
    for name in reference.pages:
        (folder / f"{name}.md").write_text(reference.page(name), encoding="utf-8")
    (folder / "index.md").write_text(reference.index(), encoding="utf-8")
    return reference.entries


class Reference:
    """All that is documented, and where."""

    def __init__(self) -> None:
        self.modules = {
            name: importlib.import_module(name) for name in public_modules()
        }
        self.home: dict[int, Entry] = {}  # by the identity of the value
        self.own: dict[str, list[Entry]] = {name: [] for name in self.modules}
        # Keras's names are looked up in the modules where Keras has them.
        order = sorted(
            self.modules, key=lambda name: (name == "memcfg.nn", name.count("."))
        )
        for name in order:
            for public in self.modules[name].__all__:
                value = getattr(self.modules[name], public)
                if not isinstance(value, ModuleType) and (
                    id(value) not in self.home or is_constant(value)
                ):
                    entry = Entry(name, public, kind_of(value))
                    self.home.setdefault(id(value), entry)
                    self.own[name].append(entry)
        self.pages = [name for name, each in self.modules.items() if each.__all__]
        self.entries = [
            each
            for own in self.own.values()
            for entry in own
            for each in (entry, *(member for member, _ in self.members(entry)))
        ]
        self.by_full = {entry.full: entry for entry in self.entries}
        self.by_last: dict[str, list[Entry]] = {}
        for entry in self.entries:
            parts = entry.full.split(".")
            for begin in range(1, len(parts)):
                self.by_last.setdefault(".".join(parts[begin:]), []).append(entry)
        self.docstrings = Docstrings(self.link)

    def value(self, entry: Entry) -> Any:
        """Return what an exported name stands for."""
        return getattr(self.modules[entry.module], entry.name)

    def members(self, entry: Entry) -> Iterator[tuple[Entry, Any]]:
        """Yield the public members of a class that no documented base class has."""
        value = self.value(entry)
        if entry.kind != "class":
            return
        seen = set()
        for owner in value.__mro__:
            documented = owner is not value and id(owner) in self.home
            if not owner.__module__.startswith("memcfg"):
                continue
            for name, member in vars(owner).items():
                if name.startswith("_") or name in seen:
                    continue
                seen.add(name)
                if documented or not inspect.getdoc(getattr(value, name, None)):
                    continue
                if callable(member) or isinstance(member, classmethod | staticmethod):
                    if not isinstance(member, type):
                        yield (
                            Entry(entry.module, f"{entry.name}.{name}", "method"),
                            member,
                        )
                elif is_property(member):
                    yield (
                        Entry(entry.module, f"{entry.name}.{name}", "attribute"),
                        member,
                    )

    def link(self, name: str, place: str) -> str | None:
        """Return where a name is documented; names near the place come first."""
        name = name.removesuffix("()")
        if name in self.modules and self.modules[name].__all__:
            return f"{name}.html"
        for begin in (*prefixes(place), ""):
            if (found := self.by_full.get(f"{begin}{name}")) is not None:
                return found.url
        several = self.by_last.get(name, [])
        if "." not in name:  # a member is only meant near its class
            several = [each for each in several if "." not in each.name]
        return several[0].url if len(several) == 1 else None

    def index(self) -> str:
        """Return the page that lists the modules."""
        rows = "\n".join(
            f"| [`{name}`]({name}.md) | {first_line(self.modules[name])} |"
            for name in self.pages
        )
        names = "\n".join(self.pages)
        return (
            "# API reference\n\nEvery name that a module exports, with its signature "
            "and docstring. `import memcfg as mc` loads a module when it is first used."
            f"\n\n| module | |\n| --- | --- |\n{rows}\n\n"
            f"```{{toctree}}\n:hidden:\n\n{names}\n```\n"
        )

    def page(self, name: str) -> str:
        """Return the page of a module."""
        own = sorted(self.own[name], key=lambda each: each.name.lower())
        text = inspect.getdoc(self.modules[name]) or ""
        parts = [
            self.docstrings.render(text, name),
            f'<table class="names docutils">{"".join(self.rows(name))}</table>',
            *map(self.section, own),
        ]
        body = "\n".join(parts)
        return f"# {name}\n\n``````{{raw}} html\n{body}\n``````\n"

    def rows(self, name: str) -> Iterator[str]:
        """Yield a row for each name that a module exports."""
        for public in sorted(self.modules[name].__all__, key=str.lower):
            value = getattr(self.modules[name], public)
            if isinstance(value, ModuleType):
                url = f"{value.__name__}.html" if value.__name__ in self.pages else None
            else:
                own = next((e for e in self.own[name] if e.name == public), None)
                url = (own or self.home[id(value)]).url
            link = f'<a href="{url}">{public}</a>' if url else public
            said = self.docstrings.line(first_line(value), name)
            yield f"<tr><td><code>{link}</code></td><td>{said}</td></tr>"

    def section(self, entry: Entry) -> str:
        """Return the description of a name and its members."""
        value = self.value(entry)
        if entry.kind == "data":
            doc = constants().get((entry.name, id(value)), "")
            shown, doc = entry.name, doc
        else:
            shown, doc = signature(value, entry.name), inspect.getdoc(value) or ""
        parts = [self.described(entry, entry.kind, shown, doc)]
        if entry.kind == "class":
            parts.append(self.bases(value))
            if issubclass(value, Enum):
                names = ", ".join(f"<code>{each.name}</code>" for each in value)
                parts.append(f"<p>Members: {names}</p>")
        for member, raw in self.members(entry):
            parts.append(self.member(member, raw, value))
        parts.append("</section>")
        return "".join(parts)

    def member(self, entry: Entry, raw: Any, owner: type) -> str:
        """Return the description of a method or property."""
        name = entry.name.rpartition(".")[2]
        value = getattr(owner, name)
        doc = inspect.getdoc(value) or ""
        if entry.kind == "method":
            words = "classmethod" if isinstance(raw, classmethod) else ""
            shown = signature(value, name)
        else:
            words, get = (
                "property",
                getattr(raw, "fget", None) or getattr(raw, "func", None),
            )
            result = getattr(get, "__annotations__", {}).get("return", "")
            shown = f"{name}: {result}" if isinstance(result, str) and result else name
        return f"{self.described(entry, words, shown, doc)}</section>"

    def described(self, entry: Entry, kind: str, shown: str, doc: str) -> str:
        """Return the beginning of a section: the signature and the docstring."""
        code = highlight(shown, PythonLexer(), HTML).rstrip("\n")
        words = f'<span class="kind">{kind}</span> ' if kind else ""
        level = "member" if "." in entry.name else "entry"
        anchor = f'<a class="headerlink" href="#{entry.full}" title="Link">#</a>'
        return (
            f'<section class="{level}" id="{entry.full}"><div class="highlight '
            f'signature"><pre>{words}{code}{anchor}</pre></div>'
            f"{self.docstrings.render(doc, entry.full)}"
        )

    def bases(self, value: type) -> str:
        """Return the documented base classes of a class."""
        found = [
            f'<a href="{self.home[id(base)].url}"><code>{base.__name__}</code></a>'
            for base in value.__mro__[1:]
            if id(base) in self.home and base is not object
        ]
        return f"<p>Base classes: {', '.join(found)}</p>" if found else ""


def kind_of(value: Any) -> str:
    """Return what an exported value is."""
    if inspect.isclass(value):
        return "class"
    return "function" if inspect.isroutine(value) else "data"


def is_property(member: Any) -> bool:
    """Return whether a member of a class is read like an attribute."""
    return isinstance(member, property) or (
        inspect.isdatadescriptor(member) or hasattr(type(member), "__set_name__")
    )


def is_constant(value: Any) -> bool:
    """Return whether a value may be the same as another one by accident, such as 1."""
    return isinstance(value, int | float | str | tuple | frozenset | bool | None)


def prefixes(place: str) -> Iterator[str]:
    """Yield ``"a.b."`` and ``"a."`` for ``"a.b"``."""
    parts = place.split(".")
    for count in range(len(parts), 0, -1):
        yield "".join(f"{part}." for part in parts[:count])


def public_modules() -> list[str]:
    """Name the modules without an underscore that users import."""
    rooms = {*memcfg.__all__, "cli", "torch"}
    found = ["memcfg"]
    for each in pkgutil.walk_packages(memcfg.__path__, "memcfg."):
        parts = each.name.split(".")
        if parts[1] in rooms and not any(part.startswith("_") for part in parts):
            found.append(each.name)
    return sorted(found)


def first_line(value: Any) -> str:
    """Return the first sentence of a docstring, for a table."""
    text = inspect.getdoc(value) or ""
    if not isinstance(value, ModuleType) and kind_of(value) == "data":
        text = next((doc for (_, i), doc in constants().items() if i == id(value)), "")
    return " ".join(text.partition("\n\n")[0].split())


@cache
def constants() -> dict[tuple[str, int], str]:
    """Return the text below each constant of the package, by its name and identity."""
    found = {}
    for module in [*sys.modules.values()]:
        path = getattr(module, "__file__", None) or ""
        if not getattr(module, "__name__", "").startswith(
            "memcfg"
        ) or not path.endswith(".py"):
            continue
        for one, other in pairwise(
            ast.parse(Path(path).read_text(encoding="utf-8")).body
        ):
            target = one.targets[0] if isinstance(one, ast.Assign) else None
            target = one.target if isinstance(one, ast.AnnAssign) else target
            match target, other:
                case ast.Name(id=name), ast.Expr(value=ast.Constant(value=str(doc))):
                    if hasattr(module, name):
                        found[name, id(getattr(module, name))] = inspect.cleandoc(doc)
    return found
