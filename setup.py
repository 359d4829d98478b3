"""Build: folder X, or frameworks/X, is the package hocket.X (src/hocket/ holds one symlink per folder)."""

import os
import re
from glob import glob

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup

FOLDERS = [
    "algorithms", "bench", "collectives", "compression", "conformance", "control", "dask", "flower", "horovod", "jax",
    "kernels", "lightgbm", "observe", "ray", "spark", "system", "tools", "torch", "training", "transports",
    "xgboost",
]
# A folder of a folder is a package where it has an __init__.py.
PACKAGES = ["hocket"] + sorted(
    os.path.dirname(path).removeprefix("src/").replace("/", ".")
    for folder in FOLDERS
    for path in glob(f"src/hocket/{folder}/**/__init__.py", recursive=True)
)
# Listed by name, so that a missing file fails the build.  The first takes as long as ten others, so it begins first.
EXTENSIONS = [
    "kernels.cpu.reduce",
    "bench.harness.limits",
    "collectives.arrays.buffers",
    "collectives.arrays.dlpack",
    "collectives.communicator.collectives",
    "collectives.communicator.point_to_point",
    "collectives.engine.drive",
    "collectives.engine.engine",
    "collectives.engine.instructions",
    "collectives.engine.matching",
    "collectives.engine.packing",
    "collectives.engine.placed",
    "collectives.engine.prepared",
    "collectives.engine.short_messages",
    "collectives.engine.shortcut",
    "collectives.gpu.stream_ops",
    "collectives.gpu.meeting",
    "collectives.plans.plan",
    "collectives.recording.recorder",
    "collectives.waiting.lead",
    "collectives.waiting.news",
    "collectives.waiting.progress",
    "collectives.waiting.queued",
    "collectives.waiting.selector",
    "collectives.waiting.sleep",
    "jax.handler",
    "kernels.cpu.elias",
    "kernels.digest",
    "lightgbm.callbacks",
    "system.cuda.driver",
    "system.cuda.shared",
    "system.exit_code",
    "system.tls",
    "torch.calls.options",
    "torch.calls.quick",
    "transports.adapter",
    "transports.cuda_ipc.channels",
    "transports.loopback",
    "transports.mpi.call",
    "transports.mpi.channel",
    "transports.mpi.library",
    "transports.pinned.channels",
    "transports.shm.channels",
    "transports.shm.window",
    "transports.tcp.stream",
    "transports.tcp.tls_channels",
    "transports.verbs.channels",
    "transports.verbs.device",
    "transports.verbs.ends",
]
# HOCKET_CFLAGS adds compiler and linker flags (the sanitizer builds of `make sanitize`).
EXTRA = os.environ.get("HOCKET_CFLAGS", "").split()
# Names that nobody links against are three quarters of a library's size; a debugger, a sanitizer and perf want them.
DEBUG = any(flag.startswith(("-g", "-fsanitize")) for flag in EXTRA)
STRIP = [] if DEBUG else ["-g0"], [] if DEBUG else ["-Wl,-s"]
CORES = len(os.sched_getaffinity(0))
# How a source names what it is compiled from: #include of C; `cdef extern from` and `cimport` of Cython.
NAMED = re.compile(r'^ *# *include "(.+?)"|^cdef extern from "(.+?)"|^from (hocket\.[\w.]+) cimport', re.M)


def headers(source):
    """The headers that this .pyx includes, by whatever it includes and cimports: if one changes, it is built again."""
    named, left = set(), {source, f"{source.removesuffix('pyx')}pxd"}
    while left:
        path = left.pop()
        if path in named or not os.path.isfile(path):
            continue
        named.add(path)
        with open(path) as file:
            for include, extern, module in NAMED.findall(file.read()):
                beside = os.path.normpath(f"{os.path.dirname(path)}/{include}")
                if module:
                    left.add(f"src/{module.replace('.', '/')}.pxd")
                else:
                    left.add(beside if include and os.path.isfile(beside) else f"src/hocket/{include or extern}")
    return sorted(path for path in named if path.endswith(".h"))


def extension(name):
    source = f"src/hocket/{name.replace('.', '/')}.pyx"
    return Extension(
        f"hocket.{name}",
        [source],
        include_dirs=["src/hocket", numpy.get_include()],
        define_macros=[("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION")],
        extra_compile_args=["-std=gnu11", "-O3", "-fno-math-errno", "-ffp-contract=off", *STRIP[0], *EXTRA],
        extra_link_args=[*STRIP[1], *EXTRA],
        depends=headers(source),
    )


setup(
    version="0.1.0",
    package_dir={"": "src"},
    packages=PACKAGES,
    package_data={"": ["*.pxd", "*.pyx", "*.pyi", "*.h", "*.cuh", "*.css", "*.js", "*.json", "py.typed"]},
    ext_modules=cythonize(
        [extension(name) for name in EXTENSIONS],
        build_dir="build/cython",
        include_path=["src"],
        language_level=3,
        compiler_directives={"boundscheck": False, "wraparound": False, "cdivision": True},
        nthreads=CORES,
    ),
    options={"build_ext": {"parallel": CORES}},
    zip_safe=False,
)
