"""Inductor: it compiles graphs to C++ and Triton, and keeps the code in caches."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torchwise._torch.private_name import PrivateName

CONFIG = PrivateName("torch._inductor", "config")
SETTINGS = PrivateName("torch._inductor.config", "_config")
"""Each setting with its default, by name."""
LIST_MODE_OPTIONS = PrivateName("torch._inductor", "list_mode_options")
LIST_OPTIONS = PrivateName("torch._inductor", "list_options")
AOTI_PACKAGE = PrivateName("torch._inductor", "aoti_compile_and_package")
AOTI_LOAD = PrivateName("torch._inductor", "aoti_load_package")
BACKEND = PrivateName("torch", "_TorchCompileInductorWrapper")
"""The backend of `torch.compile`, with a mode or options."""

COMPILE_FX = PrivateName("torch._inductor.compile_fx", "compile_fx")
"""Calls AOTAutograd, and `inner_compile` for each graph that results."""
COMPILE_FX_INNER = PrivateName("torch._inductor.compile_fx", "compile_fx_inner")
GENERATE_CODE = PrivateName("torch._inductor.compile_fx", "fx_codegen_and_compile")
PROPAGATE_FAKES = PrivateName("torch._inductor.compile_fx", "fake_tensor_prop")
"""Puts fake results on every node of a graph."""
DECOMPOSITIONS = PrivateName("torch._inductor.decomposition", "select_decomp_table")
FREEZE = PrivateName("torch._inductor.freezing", "freeze")
"""Computes values that depend on frozen weights alone."""
BENCHMARKER = PrivateName("torch._inductor.runtime.benchmarking", "benchmarker")
METRICS = PrivateName("torch._inductor", "metrics")

FX_GRAPH_CACHE = PrivateName("torch._inductor.codecache", "FxGraphCache")
GRAPH_KEY = PrivateName("torch._inductor.codecache", "FxGraphHashDetails")
"""The fields of which the key of compiled code consists."""
CODE_CACHE = PrivateName("torch._inductor.codecache", "PyCodeCache")
"""The loaded modules of generated code."""
OUTPUT_CODE = PrivateName("torch._inductor.output_code", "OutputCode")
"""The class of compiled graphs that AOTAutograd can write down."""
CACHE_DIR = PrivateName("torch._inductor.runtime.cache_dir_utils", "cache_dir")
DEFAULT_CACHE_DIR = PrivateName("torch._inductor.runtime.cache_dir_utils", "default_cache_dir")
TRITON_CACHE_DIR = PrivateName("torch._inductor.runtime.cache_dir_utils", "triton_cache_dir")
REMOTE_CACHE = PrivateName("torch._inductor.remote_cache", "RedisRemoteCache")
REMOTE_CACHE_BACKEND = PrivateName("torch._inductor.remote_cache", "RemoteCacheBackend")

VEC_ISA = PrivateName("torch._inductor.cpu_vec_isa", "VecISA")
VALID_VEC_ISAS = PrivateName("torch._inductor.cpu_vec_isa", "valid_vec_isa_list")

WRITE_INPUT_CHECKS = PrivateName("torch._inductor.codegen.wrapper", "PythonWrapperCodegen.codegen_input_size_asserts")
"""Writes the checks of sizes and strides of a graph's inputs. Those of operators' answers are written elsewhere."""
WRAPPER_CODE = PrivateName("torch._inductor.codegen.wrapper", "PythonWrapperCodegen")

GRAPH_PASS = PrivateName("torch._inductor.custom_graph_pass", "CustomGraphPass")
HASH_FILES = PrivateName("torch._inductor.custom_graph_pass", "get_hash_for_files")
FORCE_STRIDES = PrivateName("torch._inductor.inductor_prims", "force_stride_order")
REALIZE_KEY = "inductor_realize_to_strides"
"""The key in a node's meta data by which Inductor knows that it must write the value to memory."""

TRITON_KERNEL = PrivateName("torch._inductor.codegen.triton", "TritonKernel")
FILTER_PDL = PrivateName("torch._inductor.codegen.triton", "TritonKernel._filter_pdl")
ENABLE_PDL = PrivateName("torch._inductor.codegen.triton", "TritonKernel._enable_pdl_codegen")
PDL_WAIT = PrivateName("torch._inductor.codegen.triton", "TritonKernel.GDC_WAIT")

TEMPLATE = PrivateName("torch._inductor.select_algorithm", "TritonTemplate")
"""A kernel of products or convolutions in which launch parameters are still open."""
GENERATE = PrivateName("torch._inductor.select_algorithm", "TritonTemplate.generate")
TEMPLATE_KERNELS = PrivateName("torch._inductor.kernel", "mm")
"""The module of products, beside whose file the folder of templates is."""
TEMPLATE_KERNEL = PrivateName("torch._inductor.select_algorithm", "TritonTemplateKernel")
RENDER = PrivateName("torch._inductor.select_algorithm", "TritonTemplateKernel.render")
"""Writes the kernel of a template with these parameters."""

LOWERINGS = PrivateName("torch._inductor.lowering", "lowerings")
"""What makes Inductor's form of each operator's result, by operator."""
COMPILED_NOW = PrivateName("torch._inductor.virtualized", "V")
"""Holds the graph that is compiled (`graph`), the node of it (`current_node`), and the values of others (`env`)."""
STORAGE = PrivateName("torch._inductor.ir", "StorageBox")
"""The storage of a tensor of a graph, which views share. Its `data` is what computes it, or its memory."""
POINTWISE = PrivateName("torch._inductor.ir", "Pointwise")
"""What computes a tensor that is not in memory yet."""
FIXED_LAYOUT = PrivateName("torch._inductor.ir", "FixedLayout")
REALIZE_INPUTS = PrivateName("torch._inductor.select_algorithm", "realize_inputs")
"""Has tensors of a graph be in memory, with numbers side by side."""
PRODUCT_GRID = PrivateName("torch._inductor.kernel.mm_common", "mm_grid")
SELECT_KERNEL = PrivateName("torch._inductor.select_algorithm", "autotune_select_algorithm")
"""Times kernels, and picks one."""

BISECTOR = PrivateName("torch._inductor.compiler_bisector", "CompilerBisector")
BISECTED_BACKENDS = PrivateName("torch._inductor.compiler_bisector", "BACKENDS")

COMPILER_MODULE = "torch._inductor.compile_fx"
KERNEL_MODULES = ("torch._inductor.async_compile", "torch._inductor.runtime.triton_heuristics")
"""The modules that load kernels for a GPU."""


def patch_config(settings: dict[str, Any]) -> AbstractContextManager[None]:
    """Return a context with other settings of `torch._inductor.config`, by their dotted names."""
    context: AbstractContextManager[None] = CONFIG.get().patch(settings)
    return context


def limit_compile_threads(most: int) -> None:
    """Have Inductor compile kernels in at most so many processes at once. That is no part of the keys of its caches."""
    config = CONFIG.get()
    config.compile_threads = min(config.compile_threads or most, most)


def list_mode_options() -> dict[str, dict[str, Any]]:
    """Return the options of each mode of `torch.compile`."""
    modes: dict[str, dict[str, Any]] = LIST_MODE_OPTIONS.get()()
    return modes


def list_options() -> list[str]:
    """List the names of all options."""
    names: list[str] = LIST_OPTIONS.get()()
    return names


def make_backend(options: dict[str, Any]) -> Any:
    """Return the backend that `torch.compile(options=...)` uses."""
    return BACKEND.get()("default", options, None)


def compile_fx(*args: Any, **kwargs: Any) -> Any:
    """Call Inductor's public entry point."""
    return COMPILE_FX.get()(*args, **kwargs)


def compile_fx_inner(*args: Any, **kwargs: Any) -> Any:
    """Call Inductor's own `inner_compile`."""
    return COMPILE_FX_INNER.get()(*args, **kwargs)


def generated_kernels() -> int:
    """Count the kernels that were generated in this process, or return 1 for a version that does not count them."""
    return int(getattr(METRICS.get(), "generated_kernel_count", 1))


def load_code(compiled: Any, constants: Any) -> Any:
    """Return code that was read from a file, ready to be finished by `post_compile`."""
    return FX_GRAPH_CACHE.get().cache_hit_post_compile(compiled, {}, constants)[0]


def replace_bisector(is_disabled: Callable[..., bool]) -> None:
    """Have the compiler ask `is_disabled(backend, kind, name)` before each pass, for the life of this process.

    Nothing that was compiled is reused: the caches would hide the passes.
    """
    bisector = BISECTOR.get("bisect")
    BISECTED_BACKENDS.get("bisect")
    bisector.bisection_enabled = True  # bypasses the cache of graphs
    bisector.disable_subsystem = is_disabled
