"""libibverbs as ibverbs.h declares it: its structures, and the table of its functions."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef extern from "transports/verbs/ibverbs.h" nogil:
    struct ibv_device:
        pass
    struct ibv_context:
        pass
    struct ibv_pd:
        ibv_context* context
    struct ibv_mr:
        uint32_t lkey, rkey
    struct ibv_mw:
        pass
    struct ibv_comp_channel:
        int fd
    struct ibv_cq:
        pass
    struct ibv_qp:
        uint32_t qp_num
    struct ibv_qp_cap:
        uint32_t max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data
    struct ibv_qp_init_attr:
        ibv_cq* send_cq
        ibv_cq* recv_cq
        ibv_qp_cap cap
        int qp_type
    struct ibv_global_route:
        uint8_t dgid[16]
        uint8_t sgid_index, hop_limit
    struct ibv_ah_attr:
        ibv_global_route grh
        uint8_t is_global, port_num
        int dlid
    struct ibv_qp_attr:
        int qp_state, path_mtu
        uint32_t rq_psn, sq_psn, dest_qp_num
        unsigned int qp_access_flags
        ibv_ah_attr ah_attr
        uint8_t max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry
    struct ibv_device_attr:
        unsigned int device_cap_flags
        uint8_t phys_port_cnt
    struct ibv_port_attr:
        int state, active_mtu, gid_tbl_len
        int lid
    enum:
        IBV_QPT_RC, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_PORT_ACTIVE
        IBV_QP_STATE, IBV_QP_ACCESS_FLAGS, IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_AV, IBV_QP_PATH_MTU, IBV_QP_TIMEOUT
        IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_RQ_PSN, IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER
        IBV_QP_SQ_PSN, IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_DEST_QPN
        IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_MW_BIND
        IBV_MW_TYPE_2, IBV_DEVICE_MEM_WINDOW_TYPE_2B
    struct hk_ibv:
        ibv_device** (*ibv_get_device_list)(int*)
        void (*ibv_free_device_list)(ibv_device**)
        const char* (*ibv_get_device_name)(ibv_device*)
        ibv_context* (*ibv_open_device)(ibv_device*)
        int (*ibv_close_device)(ibv_context*)
        int (*ibv_query_device)(ibv_context*, ibv_device_attr*)
        int (*ibv_query_port)(ibv_context*, uint8_t, ibv_port_attr*)
        int (*ibv_query_gid)(ibv_context*, uint8_t, int, uint8_t*)
        ibv_pd* (*ibv_alloc_pd)(ibv_context*)
        int (*ibv_dealloc_pd)(ibv_pd*)
        ibv_mr* (*ibv_reg_mr)(ibv_pd*, void*, size_t, int)
        int (*ibv_dereg_mr)(ibv_mr*)
        ibv_comp_channel* (*ibv_create_comp_channel)(ibv_context*)
        int (*ibv_destroy_comp_channel)(ibv_comp_channel*)
        ibv_cq* (*ibv_create_cq)(ibv_context*, int, void*, ibv_comp_channel*, int)
        int (*ibv_destroy_cq)(ibv_cq*)
        ibv_qp* (*ibv_create_qp)(ibv_pd*, ibv_qp_init_attr*)
        int (*ibv_modify_qp)(ibv_qp*, ibv_qp_attr*, int)
        int (*ibv_destroy_qp)(ibv_qp*)
        int (*ibv_fork_init)()
        ibv_mr* (*ibv_reg_dmabuf_mr)(ibv_pd*, uint64_t, size_t, uint64_t, int, int)
    int hk_ibv_open(hk_ibv*, const char*, char*, size_t)
