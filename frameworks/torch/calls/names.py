"""torch's names for a method, by version.  A new name is a line here; all of them work on every version.

torch 2.13 renamed the calls on single tensors and kept the old names for callers; its C++ code looks for the new ones
first.  2.15 adds gather_single.
"""

ALIASES = {
    "all_gather_single": ("_allgather_base",),
    "all_gather_single_coalesced": ("allgather_into_tensor_coalesced",),
    "reduce_scatter_single": ("_reduce_scatter_base",),
    "reduce_scatter_single_coalesced": ("reduce_scatter_tensor_coalesced",),
    "all_to_all_single": ("alltoall_base",),
    "getRank": ("rank",),
    "getSize": ("size",),
    "getBackendName": ("name",),
    "setGroupName": ("_set_group_name",),
    "setGroupDesc": ("_set_group_desc",),
    "setTimeout": ("set_timeout", "_set_default_timeout"),
    "getSequenceNumberForGroup": ("_get_sequence_number_for_group",),
    "setSequenceNumberForGroup": ("_set_sequence_number_for_group",),
    "start_coalescing": ("_start_coalescing",),
    "end_coalescing": ("_end_coalescing",),
    "monitoredBarrier": ("monitored_barrier",),
}
"""A method's name here -> its other names."""


def with_aliases(kind: type) -> type:
    """Give a class the other names of its methods."""
    for name, others in ALIASES.items():
        for other in others:
            setattr(kind, other, getattr(kind, name))
    return kind
