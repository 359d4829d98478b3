"""Build: folder X, or frameworks/X, is the package hocket.X (src/hocket/ holds one symlink per folder)."""

import os
from glob import glob

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup

FOLDERS = ["algorithms", "bench", "collectives", "conformance", "kernels", "torch", "transports"]
# Listed by name, so that a missing file fails the build.
EXTENSIONS = [
    "bench.limits",
    "collectives.buffers",
    "collectives.device",
    "collectives.dlpack",
    "collectives.drive",
    "collectives.engine",
    "collectives.exit_code",
    "collectives.hot",
    "collectives.matching",
    "collectives.meeting",
    "collectives.moves",
    "collectives.placed",
    "collectives.plan",
    "collectives.progress",
    "collectives.work",
    "kernels.reduce",
    "torch.options",
    "torch.quick",
    "transports.adapter",
    "transports.cuda",
    "transports.cuda_lane",
    "transports.mpi_call",
    "transports.mpi_channel",
    "transports.mpi_library",
    "transports.pinned",
    "transports.rdma",
    "transports.stream",
    "transports.tls",
    "transports.window",
]
# HOCKET_CFLAGS adds compiler and linker flags (the sanitizer builds of `make sanitize`).
EXTRA = os.environ.get("HOCKET_CFLAGS", "").split()
# Names that nobody links against are three quarters of a library's size; a debugger, a sanitizer and perf want them.
DEBUG = any(flag.startswith(("-g", "-fsanitize")) for flag in EXTRA)
STRIP = [] if DEBUG else ["-g0"], [] if DEBUG else ["-Wl,-s"]
CORES = len(os.sched_getaffinity(0))


def extension(name):
    return Extension(
        f"hocket.{name}",
        [f"src/hocket/{name.replace('.', '/')}.pyx"],
        include_dirs=["src/hocket", numpy.get_include()],
        define_macros=[("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION")],
        extra_compile_args=["-std=gnu11", "-O3", "-fno-math-errno", *STRIP[0], *EXTRA],
        extra_link_args=[*STRIP[1], *EXTRA],
        depends=glob("kernels/*.h") + glob("transports/*.h"),
    )


setup(
    version="0.1.0",
    package_dir={"": "src"},
    packages=["hocket", *(f"hocket.{folder}" for folder in FOLDERS)],
    package_data={"": ["*.pxd", "*.pyx", "*.pyi", "*.h", "*.cuh", "py.typed"]},
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
