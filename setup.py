"""Compiles the native kernels into the package where there is a C++ compiler; everything else is in pyproject.toml."""

import importlib.util
import os
import shutil
import subprocess
import warnings
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

KERNELS = Path(__file__).parent / "src" / "rewire" / "kernels"


def _builder():
    spec = importlib.util.spec_from_file_location("rewire_kernels_build", KERNELS / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _copy(path: Path, folder: Path) -> None:
    """Copy a library, and rename it at the end: a running process may have the old one open."""
    part = folder / f"{path.name}.{os.getpid()}"
    shutil.copy2(path, part)
    part.replace(folder / path.name)


class BuildKernels(build_ext):
    """Plain shared libraries beside the package's Python files, for ordinary and editable installs alike."""

    def build_extension(self, ext: Extension) -> None:
        """Compile for every instruction set, unless the libraries beside the sources are still those of the sources.

        Without a compiler the reference implementation runs.
        """
        builder, folder = _builder(), Path(self.get_ext_fullpath(ext.name)).parent
        kept = {isa: builder.library_path(isa, KERNELS) for isa in builder.instruction_sets()}
        if all(builder.is_current(path, isa) for isa, path in kept.items()):
            folder.mkdir(parents=True, exist_ok=True)
            for path in kept.values():
                if path.parent.resolve() != folder.resolve():
                    _copy(path, folder)
            return
        try:
            builder.build(folder)
        except (FileNotFoundError, subprocess.CalledProcessError) as error:
            if os.environ.get("REWIRE_KERNELS") == "required":  # `make wheel`: no release without them
                raise
            warnings.warn(
                f"the native sparse kernels were not built, slow plain-torch ones will run: {error}", stacklevel=1
            )

    def copy_extensions_to_source(self) -> None:
        """An editable install finds the libraries beside the sources."""
        for path in self._built():
            _copy(path, KERNELS)

    def get_outputs(self) -> list[str]:
        """The libraries that a wheel has to carry."""
        return [str(path) for path in self._built()]

    def get_output_mapping(self) -> dict[str, str]:
        """Where an editable install puts each of them."""
        return {str(path): str(KERNELS / path.name) for path in self._built()} if self.inplace else {}

    def _built(self) -> list[Path]:
        return sorted(Path(self.build_lib, "rewire", "kernels").glob("librewire_*.so"))


class OneWheelForAllPythons(bdist_wheel):
    """The libraries use neither Python's nor torch's binary interface: one wheel per platform serves every Python 3."""

    def get_tag(self) -> tuple[str, str, str]:
        """As for an extension, without its Python and its interface."""
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=[Extension("rewire.kernels._native", sources=[])],
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": OneWheelForAllPythons},
)
