"""Build: folder X, or frameworks/X, is package hocket.X; compressors/ is hocket.compression (links in src/hocket/)."""

import hashlib
import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from glob import glob

import Cython
import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

if sys.byteorder != "little":
    sys.exit("hocket needs a little-endian processor: ranks exchange numbers as they lie in memory")
FOLDERS = [
    "algorithms", "bench", "collectives", "compression", "conformance", "control", "dask", "flower", "horovod", "jax",
    "keras", "kernels", "lightgbm", "observe", "ray", "spark", "system", "tensorflow", "tools", "torch", "training",
    "transports", "xgboost", "xla",
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
    "collectives.arrays.shared",
    "collectives.communicator.collectives",
    "collectives.communicator.point_to_point",
    "collectives.engine.drive",
    "collectives.engine.engine",
    "collectives.engine.instructions",
    "collectives.engine.matching",
    "collectives.quick.packing",
    "collectives.engine.placed",
    "collectives.quick.prepared",
    "collectives.quick.short_messages",
    "collectives.quick.shortcut",
    "collectives.gpu.stream_ops",
    "collectives.gpu.meeting",
    "collectives.plans.plan",
    "collectives.layouts.copies",
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
    "kernels.select",
    "kernels.thin",
    "lightgbm.callbacks",
    "system.cuda.driver",
    "system.cuda.shared",
    "system.exit_code",
    "system.tls",
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
    "transports.tcp.healing",
    "transports.tcp.long.many",
    "transports.tcp.stream",
    "transports.tcp.tls_channels",
    "transports.verbs.channels",
    "transports.verbs.device",
    "transports.verbs.ends",
    "xla.serving",
]
# What XLA calls by a constant of MPI's, in the order of the tables in xla/serving.pyx.
XLA = {
    "TYPES": [
        "BYTE", "INT8_T", "UINT8_T", "INT16_T", "UINT16_T", "INT32_T", "UINT32_T", "INT64_T", "UINT64_T", "FLOAT",
        "DOUBLE", "C_COMPLEX", "C_DOUBLE_COMPLEX",
    ],
    "OPS": ["SUM", "PROD", "MIN", "MAX"],
}
# What a call or a channel runs through: there -O3 saves 4 to 26 % of the instructions (valgrind --tool=callgrind;
# lab/observe/recorder.py counts).  It takes more than twice the time of -Og, which does for the other modules.
QUICK = {
    "collectives.communicator.collectives", "collectives.communicator.point_to_point", "collectives.engine.drive",
    "collectives.engine.engine", "collectives.engine.instructions", "collectives.engine.matching",
    "collectives.quick.short_messages", "collectives.quick.shortcut", "collectives.layouts.copies",
    "collectives.waiting.progress", "collectives.waiting.queued", "kernels.cpu.reduce", "kernels.digest",
    "kernels.select", "kernels.thin", "torch.calls.quick",
    "transports.cuda_ipc.channels", "transports.loopback", "transports.mpi.channel", "transports.pinned.channels",
    "transports.shm.channels", "transports.tcp.stream", "transports.tcp.tls_channels", "transports.verbs.channels",
    "xla.serving",
}  # fmt: skip
# Loops over elements: the vectors of -O3 without what it unrolls and peels around them, which costs twice the time and
# gains nothing (bench/kernels.py).  Of two levels on x86-64; elsewhere there is one.
VECTORS = ["-O2", "-ftree-vectorize", "-fvect-cost-model=dynamic", "--param=vect-epilogues-nomask=0"]
X86 = sysconfig.get_platform().endswith("x86_64")  # _PYTHON_HOST_PLATFORM tells of another machine
# HOCKET_CFLAGS adds compiler and linker flags (the sanitizer builds of `make sanitize`).
EXTRA = os.environ.get("HOCKET_CFLAGS", "").split()
# Names that nobody links against are three quarters of a library's size; a debugger, a sanitizer and perf want them.
DEBUG = any(flag.startswith(("-g", "-fsanitize")) for flag in EXTRA)
STRIP = [] if DEBUG else ["-g0"], [] if DEBUG else ["-Wl,-s"]
CORES = len(os.sched_getaffinity(0))
# The last line of what Cython makes, and its folder: the C has calls of the NumPy whose declarations it was made from.
END = b"#endif /* Py_PYTHON_H */\n"
MADE = f"build/cython/{Cython.__version__}-{numpy.__version__}"


class Build(build_ext):
    """Takes from build/cache what was compiled before, of the same text by the same command; says what it compiles.

    pip builds in a new folder each time, and a build may be interrupted: neither compiles anything twice.
    """

    def build_extensions(self):
        self.version = subprocess.run([*self.words("compiler_so"), "--version"], capture_output=True, check=True).stdout
        self.count = itertools.count(1)
        os.makedirs("build/cache", exist_ok=True)
        super().build_extensions()

    def get_ext_filename(self, name):
        """The library for XLA is no module, and has a name that Python does not take for one."""
        found = super().get_ext_filename(name)
        return os.path.join(os.path.dirname(found), "libhocket_mpi.so.1") if name.endswith("libhocket_mpi") else found

    def words(self, tool):
        found = getattr(self.compiler, tool)
        return shlex.split(found) if isinstance(found, str) else list(found)

    def build_extension(self, ext):
        begin = time.perf_counter()
        [source], target = ext.sources, self.get_ext_fullpath(ext.name)
        folders = [f"-I{folder}" for folder in [*ext.include_dirs, *self.compiler.include_dirs]]
        compiler, linker = [*self.words("compiler_so"), *ext.extra_compile_args], self.words("linker_so")
        with tempfile.TemporaryDirectory() as folder:
            text = f"{folder}/text.i"
            self.call(ext, [*compiler, *folders, "-E", source, "-o", text])
            with open(text, "rb") as file:
                code = re.sub(rb"^# .*\n", b"", file.read(), flags=re.M)  # where it lies does not count,
            code = re.sub(rb'"[^"\n]*/site-packages/', b'"', code)  # nor where NumPy and Cython do
            command = " ".join([*compiler, *linker, *ext.extra_link_args]).encode()
            kept = f"build/cache/{hashlib.sha256(b' '.join([self.version, command, code])).hexdigest()}.so"
            made = not os.path.exists(kept)
            if made:
                part = f"{kept}.{os.getpid()}"
                self.call(ext, [*compiler, "-c", text, "-o", f"{folder}/text.o"])
                self.call(ext, [*linker, f"{folder}/text.o", *ext.extra_link_args, "-o", part])
                os.replace(part, kept)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copy(kept, f"{target}.new")
        os.replace(f"{target}.new", target)  # a process may have the old one loaded
        number = next(self.count)
        if made:
            words = f"[{number}/{len(self.extensions)}] {ext.name} {time.perf_counter() - begin:.1f} s"
            print(words, file=sys.stderr, flush=True)

    def call(self, ext, command):
        try:
            subprocess.run(command, check=True)
        except subprocess.CalledProcessError as error:
            raise CompileError(f"{ext.name}: {shlex.join(command)}") from error


def extension(name):
    source = f"src/hocket/{name.replace('.', '/')}.pyx"
    optimise = VECTORS if name == "kernels.cpu.reduce" and X86 else ["-O3" if name in QUICK else "-Og"]
    return Extension(
        f"hocket.{name}",
        [source],
        include_dirs=["src/hocket", numpy.get_include()],
        extra_compile_args=[
            "-std=gnu11", "-DNPY_NO_DEPRECATED_API=NPY_2_0_API_VERSION", "-w", *optimise, "-fno-math-errno",
            "-ffp-contract=off", *STRIP[0], *EXTRA,
        ],
        extra_link_args=[*STRIP[1], *EXTRA],
    )


def remove_halves():
    """Remove .c files that Cython was interrupted in; they are newer than their sources all the same."""
    for path in glob("build/cython/**/*.c", recursive=True):
        with open(path, "rb") as file:
            whole = file.read().endswith(END)
        if not whole:
            os.remove(path)


def xla_library():
    """The library that XLA and C programs load: no module of Python's.  Its header comes from names.txt, and lists what
    its sources lack."""
    folder = "src/hocket/xla"
    own = set()
    for source in ("library.c", "c_programs.h"):
        with open(f"{folder}/{source}") as file:
            found = re.findall(r"^int (MPI\w+)\(|\bDO\((\w+), \(", file.read(), re.M)
        own |= {name or f"MPI_{bare}" for name, bare in found}
    with open(f"{folder}/names.txt") as file:
        items = [item for line in file if not line.startswith("#") for item in line.split()]
    lines = []
    for item in items:
        name, _, value = item.partition("=")
        prefix, _, bare = name.partition("_")
        if value:
            lines.append(f"const word {name} = {value};")
            continue
        if name not in own:
            lines.append(f"{'REFUSE' if prefix == 'MPIABI' else 'REFUSE_EXTENSION'}({bare})")
        if prefix == "MPIABI" and f"MPI_{bare}" not in own:
            lines.append(f"ENDS({bare})")
    for table in ("TYPES", "OPS"):
        words = XLA[table]
        cases = " ".join(f"if (value == MPIABI_{word}) return {index};" for index, word in enumerate(words))
        lines.append(f"static int {table.lower()[:-1]}_of(word value) {{ {cases} return -1; }}")
    os.makedirs("build/include", exist_ok=True)
    with open("build/include/xla_names.h", "w") as file:
        file.write("\n".join(lines) + "\n")
    return Extension(
        "hocket.xla.libhocket_mpi",
        [f"{folder}/library.c"],
        include_dirs=["src/hocket", "build/include"],
        extra_compile_args=["-std=gnu11", "-O2", *STRIP[0], *EXTRA],
        extra_link_args=[*STRIP[1], *EXTRA],
    )


remove_halves()
setup(
    version="0.1.0",
    package_dir={"": "src"},
    packages=PACKAGES,
    package_data={
        "": ["*.pxd", "*.pyx", "*.pyi", "*.h", "*.cuh", "*.css", "*.js", "*.json", "py.typed"],
        "hocket.xla": ["names.txt", "library.c"],
    },
    ext_modules=[
        xla_library(),
        *cythonize(
            [extension(name) for name in EXTENSIONS],
            build_dir=MADE,
            include_path=["src"],
            language_level=3,
            compiler_directives={"boundscheck": False, "wraparound": False, "cdivision": True, "auto_pickle": False},
            nthreads=CORES,
        ),
    ],
    cmdclass={"build_ext": Build},
    options={"build_ext": {"parallel": CORES}},
    zip_safe=False,
)
