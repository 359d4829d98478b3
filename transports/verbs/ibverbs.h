/* What hocket uses of libibverbs, which is opened when it is first asked for: no build and no wheel needs it.
 *
 * The structures are the public binary interface IBVERBS_1.1, which has not changed since 2006 but by growing at its
 * ends; fields that are not used here are only kept room for.  tests/guest/abi.c compares every size and offset with
 * the system's own infiniband/verbs.h.
 *
 * The names are libibverbs' own, so its manual pages (ibv_post_send(3), ...) describe them; do not include both. */
#ifndef HK_IBVERBS_H
#define HK_IBVERBS_H

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>

#include "system/foreign.h"

enum { IBV_QPT_RC = 2 };
enum { IBV_QPS_INIT = 1, IBV_QPS_RTR = 2, IBV_QPS_RTS = 3, IBV_QPS_ERR = 6 };
enum {
    IBV_QP_STATE = 1 << 0, IBV_QP_ACCESS_FLAGS = 1 << 3, IBV_QP_PKEY_INDEX = 1 << 4, IBV_QP_PORT = 1 << 5,
    IBV_QP_AV = 1 << 7, IBV_QP_PATH_MTU = 1 << 8, IBV_QP_TIMEOUT = 1 << 9, IBV_QP_RETRY_CNT = 1 << 10,
    IBV_QP_RNR_RETRY = 1 << 11, IBV_QP_RQ_PSN = 1 << 12, IBV_QP_MAX_QP_RD_ATOMIC = 1 << 13,
    IBV_QP_MIN_RNR_TIMER = 1 << 15, IBV_QP_SQ_PSN = 1 << 16, IBV_QP_MAX_DEST_RD_ATOMIC = 1 << 17,
    IBV_QP_DEST_QPN = 1 << 20
};
enum {
    IBV_WR_RDMA_WRITE = 0, IBV_WR_RDMA_WRITE_WITH_IMM = 1, IBV_WR_SEND = 2, IBV_WR_SEND_WITH_IMM = 3,
    IBV_WR_LOCAL_INV = 7, IBV_WR_BIND_MW = 8
};
enum { IBV_SEND_FENCE = 1, IBV_SEND_SIGNALED = 2, IBV_SEND_INLINE = 8 };
enum { IBV_WC_RECV = 1 << 7 };
enum {
    IBV_ACCESS_LOCAL_WRITE = 1, IBV_ACCESS_REMOTE_WRITE = 2, IBV_ACCESS_MW_BIND = 16
};
enum { IBV_MW_TYPE_2 = 2, IBV_DEVICE_MEM_WINDOW_TYPE_2B = 1 << 24 };
enum { IBV_PORT_ACTIVE = 4 };

struct ibv_device;
struct ibv_context;
struct ibv_qp;
struct ibv_cq;
struct ibv_wc;
struct ibv_send_wr;
struct ibv_recv_wr;

struct ibv_pd { struct ibv_context *context; uint32_t handle; };
struct ibv_mr {
    struct ibv_context *context; struct ibv_pd *pd; void *addr; size_t length; uint32_t handle, lkey, rkey;
};
struct ibv_mw { struct ibv_context *context; struct ibv_pd *pd; uint32_t rkey, handle; int type; };
struct ibv_comp_channel { struct ibv_context *context; int fd, refcnt; };

struct ibv_context {
    struct ibv_device *device;
    struct {
        void *before_mw[7];
        struct ibv_mw *(*alloc_mw)(struct ibv_pd *, int type);
        void *bind_mw;
        int (*dealloc_mw)(struct ibv_mw *);
        void *create_cq;
        int (*poll_cq)(struct ibv_cq *, int, struct ibv_wc *);
        int (*req_notify_cq)(struct ibv_cq *, int);
        void *before_post[12];
        int (*post_send)(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **);
        int (*post_recv)(struct ibv_qp *, struct ibv_recv_wr *, struct ibv_recv_wr **);
        void *after_post[5];
    } ops;
    int cmd_fd, async_fd, num_comp_vectors;
    /* a mutex and more follow: never made here */
};

struct ibv_cq { struct ibv_context *context; struct ibv_comp_channel *channel; };
struct ibv_qp {
    struct ibv_context *context; void *qp_context; struct ibv_pd *pd; struct ibv_cq *send_cq, *recv_cq; void *srq;
    uint32_t handle, qp_num;
};
struct ibv_qp_cap { uint32_t max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data; };
struct ibv_qp_init_attr {
    void *qp_context; struct ibv_cq *send_cq, *recv_cq; void *srq; struct ibv_qp_cap cap; int qp_type, sq_sig_all;
};
struct ibv_global_route {
    uint8_t dgid[16] __attribute__((aligned(8))); uint32_t flow_label; uint8_t sgid_index, hop_limit, traffic_class;
};
struct ibv_ah_attr {
    struct ibv_global_route grh; uint16_t dlid; uint8_t sl, src_path_bits, static_rate, is_global, port_num;
};
struct ibv_qp_attr {
    int qp_state, cur_qp_state, path_mtu, path_mig_state;
    uint32_t qkey, rq_psn, sq_psn, dest_qp_num;
    unsigned int qp_access_flags;
    struct ibv_qp_cap cap;
    struct ibv_ah_attr ah_attr, alt_ah_attr;
    uint16_t pkey_index, alt_pkey_index;
    uint8_t en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout,
        retry_cnt, rnr_retry, alt_port_num, alt_timeout;
    uint32_t rate_limit;
};
struct ibv_sge { uint64_t addr; uint32_t length, lkey; };
struct ibv_send_wr {
    uint64_t wr_id; struct ibv_send_wr *next; struct ibv_sge *sg_list; int num_sge, opcode; unsigned int send_flags;
    uint32_t imm_data; /* big endian; or the key to invalidate */
    union {
        struct { uint64_t remote_addr; uint32_t rkey; } rdma;
        uint64_t room[4];
    } wr;
    uint64_t qp_type;
    struct {
        struct ibv_mw *mw; uint32_t rkey;
        struct { struct ibv_mr *mr; uint64_t addr, length; unsigned int mw_access_flags; } bind_info;
    } bind_mw;
};
struct ibv_recv_wr { uint64_t wr_id; struct ibv_recv_wr *next; struct ibv_sge *sg_list; int num_sge; };
struct ibv_wc {
    uint64_t wr_id; int status, opcode; uint32_t vendor_err, byte_len, imm_data /* big endian */, qp_num, src_qp;
    unsigned int wc_flags; uint16_t pkey_index, slid; uint8_t sl, dlid_path_bits;
};
struct ibv_device_attr {
    char fw_ver[64];
    uint64_t node_guid, sys_image_guid, max_mr_size, page_size_cap;
    uint32_t vendor_id, vendor_part_id, hw_ver;
    int max_qp, max_qp_wr;
    unsigned int device_cap_flags;
    int max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom,
        max_qp_init_rd_atom, after[16];
    uint16_t max_pkeys;
    uint8_t local_ca_ack_delay, phys_port_cnt;
};
struct ibv_port_attr {
    int state, max_mtu, active_mtu, gid_tbl_len;
    uint32_t port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr;
    uint16_t pkey_tbl_len, lid, sm_lid;
    uint8_t lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width, active_speed, phys_state, link_layer,
        flags;
    uint16_t port_cap_flags2;
};

/* The functions, by name. */
#define HK_IBV_FUNCTIONS(X) \
    X(struct ibv_device **, ibv_get_device_list, (int *)) \
    X(void, ibv_free_device_list, (struct ibv_device **)) \
    X(const char *, ibv_get_device_name, (struct ibv_device *)) \
    X(struct ibv_context *, ibv_open_device, (struct ibv_device *)) \
    X(int, ibv_close_device, (struct ibv_context *)) \
    X(int, ibv_query_device, (struct ibv_context *, struct ibv_device_attr *)) \
    X(int, ibv_query_port, (struct ibv_context *, uint8_t, struct ibv_port_attr *)) \
    X(int, ibv_query_gid, (struct ibv_context *, uint8_t, int, uint8_t *)) \
    X(struct ibv_pd *, ibv_alloc_pd, (struct ibv_context *)) \
    X(int, ibv_dealloc_pd, (struct ibv_pd *)) \
    X(struct ibv_mr *, ibv_reg_mr, (struct ibv_pd *, void *, size_t, int)) \
    X(int, ibv_dereg_mr, (struct ibv_mr *)) \
    X(struct ibv_comp_channel *, ibv_create_comp_channel, (struct ibv_context *)) \
    X(int, ibv_destroy_comp_channel, (struct ibv_comp_channel *)) \
    X(struct ibv_cq *, ibv_create_cq, (struct ibv_context *, int, void *, struct ibv_comp_channel *, int)) \
    X(int, ibv_destroy_cq, (struct ibv_cq *)) \
    X(int, ibv_get_cq_event, (struct ibv_comp_channel *, struct ibv_cq **, void **)) \
    X(void, ibv_ack_cq_events, (struct ibv_cq *, unsigned int)) \
    X(struct ibv_qp *, ibv_create_qp, (struct ibv_pd *, struct ibv_qp_init_attr *)) \
    X(int, ibv_modify_qp, (struct ibv_qp *, struct ibv_qp_attr *, int)) \
    X(int, ibv_destroy_qp, (struct ibv_qp *)) \
    X(const char *, ibv_wc_status_str, (int)) \
    X(int, ibv_fork_init, (void))

typedef struct hk_ibv {
    void *library;
#define HK_IBV_MEMBER(result, name, arguments) result(*name) arguments;
    HK_IBV_FUNCTIONS(HK_IBV_MEMBER)
#undef HK_IBV_MEMBER
    /* NULL before rdma-core 34: memory of another device, given as a dma-buf */
    struct ibv_mr *(*ibv_reg_dmabuf_mr)(struct ibv_pd *, uint64_t, size_t, uint64_t, int, int);
} hk_ibv;

/* Open the library `path`.  0, or -1 with the reason in `why`. */
static inline int hk_ibv_open(hk_ibv *v, const char *path, char *why, size_t room) {
    if ((v->library = hk_foreign_open(path, why, room)) == NULL)
        return -1;
#define HK_IBV_FIND(result, name, arguments) \
    if ((*(void **)&v->name = hk_foreign_find(v->library, path, #name, why, room)) == NULL) \
        return -1;
    HK_IBV_FUNCTIONS(HK_IBV_FIND)
#undef HK_IBV_FIND
    *(void **)&v->ibv_reg_dmabuf_mr = dlsym(v->library, "ibv_reg_dmabuf_mr");
    return 0;
}

#endif
