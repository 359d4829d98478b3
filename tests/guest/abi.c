/* Sizes, offsets and numbers of what hocket uses of libibverbs: as the system's header has them (-DSYSTEM), or ours. */
#include <stddef.h>
#include <stdio.h>
#ifdef SYSTEM
#include <infiniband/verbs.h>
#else
#include "transports/verbs/ibverbs.h"
#endif

#define S(type) printf("sizeof %s %zu\n", #type, sizeof(struct type));
#define O(type, member) printf("%s.%s %zu\n", #type, #member, offsetof(struct type, member));
#define E(name) printf("%s %d\n", #name, (int)name);

int main(void) {
    S(ibv_pd) S(ibv_mr) O(ibv_mr, lkey) O(ibv_mr, rkey) O(ibv_mr, length) S(ibv_mw) O(ibv_mw, rkey)
    S(ibv_comp_channel) O(ibv_comp_channel, fd) O(ibv_context, ops.alloc_mw) O(ibv_context, ops.dealloc_mw)
    O(ibv_context, ops.poll_cq) O(ibv_context, ops.req_notify_cq) O(ibv_context, ops.post_send)
    O(ibv_context, ops.post_recv) O(ibv_context, cmd_fd) O(ibv_context, async_fd) O(ibv_cq, channel)
    O(ibv_qp, qp_num) O(ibv_qp, handle) S(ibv_qp_cap) S(ibv_qp_init_attr) O(ibv_qp_init_attr, cap)
    O(ibv_qp_init_attr, qp_type) O(ibv_qp_init_attr, sq_sig_all) S(ibv_global_route)
    O(ibv_global_route, flow_label) O(ibv_global_route, sgid_index) O(ibv_global_route, traffic_class)
    S(ibv_ah_attr) O(ibv_ah_attr, dlid) O(ibv_ah_attr, is_global) O(ibv_ah_attr, port_num) S(ibv_qp_attr)
    O(ibv_qp_attr, path_mtu) O(ibv_qp_attr, rq_psn) O(ibv_qp_attr, dest_qp_num) O(ibv_qp_attr, qp_access_flags)
    O(ibv_qp_attr, ah_attr) O(ibv_qp_attr, alt_ah_attr) O(ibv_qp_attr, pkey_index) O(ibv_qp_attr, max_rd_atomic)
    O(ibv_qp_attr, port_num) O(ibv_qp_attr, timeout) O(ibv_qp_attr, rnr_retry) O(ibv_qp_attr, rate_limit)
    S(ibv_sge) S(ibv_send_wr) O(ibv_send_wr, opcode) O(ibv_send_wr, send_flags) O(ibv_send_wr, imm_data)
    O(ibv_send_wr, wr.rdma.remote_addr) O(ibv_send_wr, wr.rdma.rkey) O(ibv_send_wr, bind_mw.mw)
    O(ibv_send_wr, bind_mw.rkey) O(ibv_send_wr, bind_mw.bind_info)
    O(ibv_send_wr, bind_mw.bind_info.mw_access_flags) S(ibv_recv_wr) S(ibv_wc) O(ibv_wc, status)
    O(ibv_wc, imm_data) O(ibv_wc, wc_flags) O(ibv_wc, slid) S(ibv_device_attr) O(ibv_device_attr, max_qp)
    O(ibv_device_attr, device_cap_flags) O(ibv_device_attr, max_qp_rd_atom) O(ibv_device_attr, max_qp_init_rd_atom)
    O(ibv_device_attr, max_pkeys) O(ibv_device_attr, phys_port_cnt) S(ibv_port_attr) O(ibv_port_attr, active_mtu)
    O(ibv_port_attr, max_msg_sz) O(ibv_port_attr, lid) O(ibv_port_attr, link_layer) E(IBV_QPT_RC)
    E(IBV_QPS_INIT) E(IBV_QPS_RTR) E(IBV_QPS_RTS) E(IBV_QPS_ERR) E(IBV_QP_STATE) E(IBV_QP_ACCESS_FLAGS)
    E(IBV_QP_PKEY_INDEX) E(IBV_QP_PORT) E(IBV_QP_AV) E(IBV_QP_PATH_MTU) E(IBV_QP_TIMEOUT) E(IBV_QP_RETRY_CNT)
    E(IBV_QP_RNR_RETRY) E(IBV_QP_RQ_PSN) E(IBV_QP_MAX_QP_RD_ATOMIC) E(IBV_QP_MIN_RNR_TIMER) E(IBV_QP_SQ_PSN)
    E(IBV_QP_MAX_DEST_RD_ATOMIC) E(IBV_QP_DEST_QPN) E(IBV_WR_RDMA_WRITE_WITH_IMM) E(IBV_WR_LOCAL_INV)
    E(IBV_WR_RDMA_WRITE) E(IBV_WR_BIND_MW) E(IBV_SEND_FENCE) E(IBV_SEND_SIGNALED) E(IBV_SEND_INLINE) E(IBV_WC_RECV)
    E(IBV_ACCESS_LOCAL_WRITE) E(IBV_ACCESS_REMOTE_WRITE) E(IBV_ACCESS_MW_BIND) E(IBV_MW_TYPE_2)
    E(IBV_DEVICE_MEM_WINDOW_TYPE_2B) E(IBV_PORT_ACTIVE)
    return 0;
}
