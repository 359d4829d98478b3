"""The CUDA kernels as NVRTC compiles them for each GPU: what no emulator sees, read off the machine code.

A few modules of each sort, for sm_90, and fewer for the other architectures: a module takes a second or two, and all
175 of them minutes.  That they run, and how fast, only a GPU can say.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hocket.compression import QSGD, Natural, OneBit, TernGrad
from hocket.kernels.codecs import CODECS, HALVES
from hocket.kernels.gpu import catalogue
from hocket.kernels.gpu.catalogue import Kernel, Module
from hocket.kernels.gpu.source import module_source
from support.gpu import nvrtc
from support.gpu.emulation import modules_of

pytestmark = pytest.mark.gpu

CODED = (*CODECS, OneBit(1024), Natural(), QSGD(22, norm="l2"), TernGrad(block=192), HALVES["bfloat16"])
HANDFUL = (
    catalogue.COPY,
    catalogue.reduce("float32", "sum"),
    catalogue.reduce("float16", "max"),
    catalogue.reduce("bfloat16", "sum"),
    catalogue.reduce("float8_e4m3fn", "sum"),
    catalogue.reduce("float64_int64", "minloc"),
    *(catalogue.shots(dtype, "sum").two_shot for dtype in ("float32", "bfloat16", "complex64")),
    catalogue.scale("int64"),
    catalogue.cast("float32", "bfloat16"),
    *(catalogue.coders(codec).fold for codec in CODED),
    *(catalogue.keepers(codec).fold for codec in CODED),
)
EVERYWHERE = (
    catalogue.COPY,
    catalogue.reduce("bfloat16", "sum"),
    catalogue.shots("float16", "max").one_shot,
    catalogue.cast("float32", "bfloat16"),
    catalogue.coders(CODECS[1]).fold,
)
MEETS = re.compile(r"hk_(barrier|allgather|(one_shot|two_shot|reduce_scatter)_\w+)")


def kernels_of(module: Module) -> list[Kernel]:
    kernels = {*catalogue.catalogue()}
    for codec in CODED:
        kernels |= {*catalogue.coders(codec), *catalogue.keepers(codec)}
    return [kernel for kernel in kernels if kernel.module == module]


def compiled(module: Module, arch: int) -> bytes:
    return nvrtc.compile_cubin(*module_source(module), arch)


def check(module: Module, cubin: bytes, folder: Path) -> None:
    path = folder / "kernels.cubin"
    path.write_bytes(cubin)
    code, used = nvrtc.assembly(path), nvrtc.resources(path)
    assert sorted(code) == sorted(kernel.name for kernel in kernels_of(module))
    for name, text in code.items():
        assert not re.search(r"\b(LDL|STL)\b", text), f"{name} uses local memory"
        assert used[name]["STACK"] == 0 and used[name]["LOCAL"] == 0, f"{name}: {used[name]}"
        blocks = 1 if MEETS.fullmatch(name) else 2  # to a multiprocessor, whatever it is
        assert used[name]["REG"] <= 65536 // 256 // blocks, f"{name}: {used[name]}"
        assert ".CONSTANT" not in text, f"{name} reads peers' memory as if nobody wrote it"
        if name.startswith(("hk_reduce_", "hk_one_", "hk_two_", "hk_scale_", "hk_copy", "hk_allgather")):
            assert re.search(r"\bLDG?\.E\.128\b", text) and re.search(r"\bSTG?\.E\.128\b", text), f"{name}: scalar"
        signals = re.findall(r"\bSTG?\.E\S*STRONG\.SYS", text)
        polls = re.findall(r"\bLDG?\.E\S*STRONG\.SYS", text)
        assert bool(signals) == bool(polls) == bool(MEETS.fullmatch(name)), f"{name}: {signals} {polls}"


@pytest.mark.parametrize("arch", [75, 80, 100, 120])
def test_a_few_for_every_architecture(arch: int, tmp_path: Path) -> None:
    for module in modules_of(EVERYWHERE):
        check(module, compiled(module, arch), tmp_path)


@pytest.mark.parametrize("kernel", HANDFUL, ids=lambda kernel: kernel.name)
def test_the_machine_code_is_as_meant(kernel: Kernel, tmp_path: Path) -> None:
    check(kernel.module, compiled(kernel.module, 90), tmp_path)
    if kernel.name == "hk_reduce_sum_bfloat16":
        text = nvrtc.assembly(tmp_path / "kernels.cubin")[kernel.name]
        assert "F2F" in text, "bfloat16 is rounded by the hardware"


def test_no_product_is_fused_with_a_sum(tmp_path: Path) -> None:
    kernel = catalogue.reduce("complex64", "prod")
    check(kernel.module, compiled(kernel.module, 90), tmp_path)
    assert not re.search(r"\bFFMA\b", nvrtc.assembly(tmp_path / "kernels.cubin")[kernel.name])


@pytest.mark.parametrize(
    ("dtype", "text"), [("float32", "a * b + 1"), ("int8", "min(a, b)"), ("float64", "hypot(a, b)")]
)
def test_expressions_compile(dtype: str, text: str) -> None:
    assert catalogue.reduce_by(dtype, text).name.encode() in compiled(catalogue.reduce_by(dtype, text).module, 90)


def test_what_breaks_the_rules_is_seen(tmp_path: Path) -> None:
    """A copy of the addresses, indexed at run time, goes to local memory; so these checks do look."""
    text, options = module_source(catalogue.BARRIER.module)
    wrong = text.replace("const __grid_constant__ T", "T").replace(
        "in.at[rank], bytes", "const_cast<hk_pointers &>(in).at[(in.at[0] = out, rank)], bytes"
    )
    assert wrong != text
    with pytest.raises(AssertionError, match="hk_allgather"):
        check(catalogue.BARRIER.module, nvrtc.compile_cubin(wrong, options, 90), tmp_path)
