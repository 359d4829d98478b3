"""The public names: none is lost, and none comes without being written down here."""

from __future__ import annotations

import importlib
import types
from typing import Any

import pytest

NAMES = {
    "hocket": """
        ArgumentError Communicator Error Grid Layout MismatchError PROC_NULL PeerLostError Reader
        ScheduleError Selector TimeoutError TransportError Work allgather allgather_object allgatherv
        allreduce alltoall alltoallv barrier broadcast broadcast_object check_equal close communicator connect
        create_group dup empty explain expression exscan fetch from_mpi gather gather_object gatherv
        grid_shape group init lane lanes listen local_world mark on_stream premul_sum prepare
        prepare_redistribute probe publish rank recorder recv recv_object redistribute reduce reduce_scatter
        reduce_scatterv register scan scatter scatter_object scatterv send send_object sendrecv set_timeout
        shared_arrays show size split stats subgroup test_any trace tune wait_all wait_any zeros
    """,
    "hocket.Communicator": """
        abort address allgather allgather_object allgatherv allreduce alltoall alltoallv barrier broadcast
        broadcast_object check_equal close come config create_group door drop dup exchange_blocks explain
        exscan following gather gather_object gatherv generation gpus groups host in_order infos lane lanes
        local_rank local_size lost mark members mpi prepare prepare_redistribute previous_lost previous_ranks
        probe raise_failed ranks_in recorder recv recv_object redistribute reduce reduce_scatter
        reduce_scatterv register renew reproducible retune scan scatter scatter_object scatterv send
        send_object sendrecv sequence set_notice set_timeout share shortcut split stats subgroup timeout trace
        tune tuning waiting when_changed whereabouts
    """,
    "hocket.Work": """
        cancel done ending giving result source tag then turned wait
    """,
    "hocket.algorithms": """
        Action Algorithm CONTRACTS Chunks Contract Copy Drawing Link Prediction Recv Schedule Send Step Topology
        algorithm cost get hierarchical ids names register show simulate topology verify verify_steps
    """,
    "hocket.arguments": """
        ArgumentError LONGEST choices human installed kind optional printable rank_in seconds seen_through some_of
        texts unmasked whole wholes
    """,
    "hocket.codecs": """
        CODECS Codec FP8 HALF_NAMES L2 MAX NATURAL ONEBIT SIGN WHOLE not_below others restore shorten thin
    """,
    "hocket.compression": """
        AdaSum Averaged Bucket Coded Compressor DGC DoubleSqueeze EF21 Elias FP8 Int Int4 Int8 Method Natural
        NonZero OkTopK OneBit Own PowerSGD QSGD RandomK SharedScale Sign Sparse Stats Step TernGrad Threshold TopK
        TwoBits allreduce_sparse choose decode encode resolved
    """,
    "hocket.errors": """
        ArgumentError Error KINDS Kind MemoryError MismatchError PeerLostError
        ScheduleError TimeoutError TransportError Under under
    """,
    "hocket.extending": """
        ADJOINTS Aside DTYPES ELSEWHERE HOST InOrder Op PremulSum REDUCING TORCH_NAMES at_once before_close check_op
        digest drive fail_at_exit gpu_of hierarchical in_order on_host outside_group pass_over pinned place put_off
        uncaptured
    """,
    "hocket.hosting": """
        FAREWELL FolderStore Store call cause has_secret here join limit local_meeting notice own_address patience
    """,
    "hocket.recording": """
        AsData Facts GradientSpan HealedSpan Kind Link NOBODY NotARecording Part RECORD Recorded Recorder Ring SPAN
        Standing What read standings understood written
    """,
    "hocket.training": """
        Adagrad Adam Again Average Cached Change Client ColumnParallel Crew CrewShards Delayed DiLoCo Downpour Experts
        Flat Handle Lamb Lars Layers LocalSGD Mesh Momentum NoLoCo Optimizer Outer Pipeline PostLocalSGD Range Replica
        Report
        RowParallel Rows Rule SGD Scheduler Server Setting Sharded SparseLoCo Staged StreamingDiLoCo Timing Tuned digest
        serve tune
    """,
    "hocket.torch": """
        Checkpointed DistributedOptimizer Served ServedEmbedding bf16_compress_hook check compress debug_handlers
        empty into_trace is_loss monitored_barrier reconfigurable redistribute register renew use with_arrays
        with_tensors
    """,
    "hocket.horovod.torch": """
        Adasum Average Compression DistributedOptimizer HorovodInternalError HostsUpdatedInterrupt Max Min
        ProcessSet Product Sum SyncBatchNorm add_process_set allgather allgather_async allgather_object
        allreduce allreduce_ allreduce_async allreduce_async_ alltoall alltoall_async barrier broadcast
        broadcast_ broadcast_async broadcast_async_ broadcast_object broadcast_optimizer_state
        broadcast_parameters ccl_built cross_rank cross_size cuda_built ddl_built elastic global_process_set
        gloo_built gloo_enabled grouped_allgather grouped_allgather_async grouped_allreduce grouped_allreduce_
        grouped_allreduce_async grouped_allreduce_async_ grouped_reducescatter grouped_reducescatter_async init
        is_homogeneous is_initialized join local_rank local_size mpi_built mpi_enabled mpi_threads_supported
        nccl_built poll rank reducescatter reducescatter_async remove_process_set rocm_built shutdown size
        sparse_allreduce_async start_timeline stop_timeline synchronize
    """,
}


def public(path: str) -> set[str]:
    """`__all__` of a module; else its names, but for modules.  Of a class the names that users see."""
    try:
        found: Any = importlib.import_module(path)
    except ModuleNotFoundError:
        module, _, name = path.rpartition(".")
        found = getattr(importlib.import_module(module), name)
    return set(getattr(found, "__all__", None) or [name for name in dir(found) if name[0] != "_" and own(found, name)])


def own(found: Any, name: str) -> bool:
    """Is it not just imported there: a module, a type for annotations?"""
    value = getattr(found, name)
    origin = getattr(value, "__module__", type(value).__module__)
    return not isinstance(value, types.ModuleType) and origin not in ("typing", "collections.abc", "__future__")


@pytest.mark.parametrize("path", NAMES)
def test_the_public_names(path: str) -> None:
    if "torch" in path:
        pytest.importorskip("torch")
    assert public(path) == set(NAMES[path].split())
