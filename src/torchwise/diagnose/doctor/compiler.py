"""Test the C++ compiler: build a small library, load it, and call it."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torchwise.diagnose.doctor import child

LIMIT_S = 60.0

PLAIN = """\
#include <vector>
extern "C" int answer() {
  std::vector<int> numbers(42, 1);
  int sum = 0;
  for (int n : numbers) sum += n;
  return sum;
}
"""

OPENMP = """\
#include <omp.h>
extern "C" int answer() {
  int sum = 0;
  #pragma omp parallel for reduction(+ : sum)
  for (int i = 0; i < 42; i++) sum += omp_get_num_threads() > 0;
  return sum;
}
"""

# In a separate process: this one may load torch later, and must not have a second OpenMP runtime.
LOAD = "import ctypes, sys; sys.exit(ctypes.CDLL(sys.argv[1]).answer() != 42)"


@dataclass(frozen=True, slots=True)
class Compiler:
    """The results of the two programs.

    Attributes:
        command: the compiler that Inductor calls: `$CXX`, else `g++` (`clang++` on macOS).
        error: why the program does not build, load or run, or "" if it works.
        openmp_error: the same for the program with OpenMP.
    """

    command: str
    error: str = ""
    openmp_error: str = ""


def try_compiler(environ: Mapping[str, str] | None = None) -> Compiler:
    """Build and run both programs with the compiler that Inductor would call."""
    environ = os.environ if environ is None else environ
    command = environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    try:
        with tempfile.TemporaryDirectory(prefix="torchwise-doctor-") as folder:
            error = _build(command, Path(folder), PLAIN)
            openmp_error = error or _build(command, Path(folder), OPENMP, "-fopenmp")
    except OSError as problem:
        error = openmp_error = f"no temporary folder can be created: {problem}"
    return Compiler(command, error, openmp_error)


def _build(command: str, folder: Path, source: str, *flags: str) -> str:
    """Build and call a library from `source`, and return the error, or ""."""
    name = folder / f"program{len(flags)}"
    name.with_suffix(".cpp").write_text(source)
    library = str(name.with_suffix(".so"))
    build = [command, "-O1", "-shared", "-fPIC", *flags, str(name.with_suffix(".cpp")), "-o", library]
    built = child.run(build, LIMIT_S)
    if built.error:
        return built.error
    loaded = child.run([sys.executable, "-I", "-c", LOAD, library], LIMIT_S)
    return f"the built library does not load: {loaded.error}" if loaded.error else ""
