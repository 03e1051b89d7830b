"""Code of one's own, named on the command line: ``package.module:function`` or ``path/to/file.py:function``.

A run remembers which code it used: the file, the function and a hash of the file's content and of what it imports from
its own folder. The hash is part of the run's identity, so a changed file makes another run, and a run is never
continued with other code than it began with.
"""

import ast
import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

OUR_PACKAGE = "rewire."  # functions of the library itself are identified by the library's version


class MissingCodeError(ValueError):
    """The code that a run was made with is not here, or has changed."""


@dataclass(frozen=True)
class Code:
    """The code behind a name in a run. Where the file lies is recorded, but two copies of it are the same code."""

    role: str  # the field of the run: data, model or method
    name: str  # what the field says, such as cautious.py:cautious
    digest: str  # of the content of the file, and of the files beside it that it imports
    path: str = field(compare=False)


def is_reference(name: str) -> bool:
    """Whether a name says where code is, instead of naming something that is registered."""
    return ":" in name


def short_name(reference: str) -> str:
    """A reference without the folder of its file: the same wherever the file lies.

    >>> short_name("ideas/cautious.py:drop"), short_name("package.module:drop")
    ('cautious.py:drop', 'package.module:drop')
    """
    place, function = reference.split(":", 1)
    return f"{Path(place).name}:{function}" if place.endswith(".py") else reference


def load(reference: str, code: Code | None = None) -> Any:
    """The object that a reference names; ``code`` is what a run recorded of it, and must still be true."""
    place, _, name = reference.partition(":")
    if place.endswith(".py"):
        module = _load_file(Path(code.path if code is not None else place))
    else:
        module = _import_module(place, reference)
    if code is not None:
        _refuse_changed(code, Path(str(module.__file__)))
    if not hasattr(module, name):
        known = [key for key, value in vars(module).items() if inspect.isfunction(value) and not key.startswith("_")]
        raise ValueError(f"{place} has no function {name!r}; it has {', '.join(known) or 'none'}")
    return getattr(module, name)


def code_of(role: str, name: str, made_by: Any) -> Code | None:
    """What to record of the code behind a name; nothing for the library's own."""
    function = inspect.unwrap(made_by)
    if str(getattr(function, "__module__", "")).startswith(OUR_PACKAGE):
        return None
    try:
        path = Path(inspect.getsourcefile(function) or "").resolve()
        return Code(role, name, digest(path), str(path))
    except (TypeError, OSError):  # typed into an interpreter: there is no file
        return Code(role, name, "", "")


def digest(path: Path) -> str:
    """Twelve hexadecimal digits that stand for the content of a file, and of the files beside it that it imports."""
    content = path.read_bytes() + b"".join(helper.read_bytes() for helper in helpers(path))
    return hashlib.blake2b(content, digest_size=6).hexdigest()


def helpers(path: Path) -> list[Path]:
    """The files in the folder of a Python file that it imports, directly or through one another; nothing is executed.

    Of a package in that folder, every file counts.
    """
    imports: dict[Path, None] = {}
    left = [path]
    while left:
        for name in _imported(left.pop()):
            module, package = path.parent / f"{name}.py", path.parent / name
            files = sorted(package.rglob("*.py")) if (package / "__init__.py").is_file() else [module]
            new = [file for file in files if file.is_file() and file != path and file not in imports]
            imports |= dict.fromkeys(new)
            left += new
    return sorted(imports)


def _imported(path: Path) -> set[str]:
    """The first parts of the names that a file imports; none if it cannot be parsed, which loading it will tell."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return set()
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names += [str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level]
    return {name.partition(".")[0] for name in names} - {OUR_PACKAGE.rstrip(".")}


def state(code: Code) -> str:
    """What is wrong with code that a run recorded: ``is missing``, ``has changed``, or nothing. It is not executed."""
    if not code.digest:
        return ""
    path = Path(code.path)
    if not path.is_file():
        return "is missing"
    return "" if digest(path) == code.digest else "has changed"


def _refuse_changed(code: Code, path: Path) -> None:
    if code.digest and (now := digest(path)) != code.digest:
        raise MissingCodeError(
            f"{code.name} has changed since the run began ({path} has hash {now}, recorded is {code.digest}): "
            "restore the file, or begin a new run"
        )


def _load_file(path: Path) -> ModuleType:
    """The module of a file, executed once for each content."""
    path = path.resolve()
    if not path.is_file():
        raise MissingCodeError(f"{path} does not exist: give the path of a Python file, as in file.py:function")
    name = f"rewire_own_{hashlib.blake2b(os.fsencode(path), digest_size=4).hexdigest()}_{digest(path)}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    _forget_changed(helpers(path))
    sys.modules[name] = module
    try:
        with _folder_on_path(path.parent):
            spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, Exception):
            raise ValueError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
        raise
    return module


_imported_contents: dict[Path, bytes] = {}  # of files beside those that were loaded, when they were


def _forget_changed(files: Sequence[Path]) -> None:
    """Let modules whose files have changed since they were imported be imported again."""
    for path in files:
        content = path.read_bytes()
        if _imported_contents.setdefault(path, content) != content:
            _imported_contents[path] = content
            for name, module in list(sys.modules.items()):
                if getattr(module, "__file__", None) == str(path):
                    del sys.modules[name]


def _import_module(place: str, reference: str) -> ModuleType:
    try:
        with _folder_on_path(Path.cwd()):
            return importlib.import_module(place)
    except ModuleNotFoundError as error:
        raise MissingCodeError(f"{reference} cannot be imported ({error}): install its package") from error


@contextmanager
def _folder_on_path(folder: Path) -> Iterator[None]:
    """Let modules beside a file be imported, as if the file were run as a script."""
    known = str(folder) in sys.path
    if not known:
        sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        if not known and str(folder) in sys.path:
            sys.path.remove(str(folder))


def file_label(name: str) -> str:
    """What tables call code of one's own: the function, or the file where the function is just called after it.

    >>> file_label("cautious.py:cautious"), file_label("ideas.py:bold"), file_label("package.module:drop")
    ('cautious', 'bold', 'drop')
    """
    return name.rpartition(":")[2] or name
