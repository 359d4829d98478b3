/* A byte stream, a connected socket, inside TLS 1.3: what the network carries can neither be read nor altered.
 *
 * Both ends hold a pre-shared key, or have certificates of one authority; each connection mixes in fresh Diffie-Hellman
 * secrets (psk_dhe_ke), so that a key which is stolen later opens nothing that was recorded.  No tickets, early data or
 * renegotiation.  Two ciphers, of which the dialling end takes one; the key is renewed on the way (RFC 8446, 5.5).
 *
 * OpenSSL never sees the socket.  It writes records into `out`, which one send takes to the kernel, and reads them from
 * `in`, which one recv has filled: 16 KiB at a time, its own way, would be a system call each.
 *
 * One thread at a time; which one does not matter. */
#ifndef HK_TLS_H
#define HK_TLS_H

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "system/tls_context.h"

#define HK_TLS_RENEW ((uint64_t)1 << 37) /* bytes under one key: half of what RFC 8446 allows AES-GCM */

/* `certified`: the context that hk_tls_certify has made, or NULL: the key alone says who is who.  `cipher`: of
 * hk_tls_ciphers, to be used if this is the dialling end.  0, or -1: no memory, or OpenSSL lacks the cipher. */
static inline int hk_tls_open(hk_tls *t, hk_ssl *lib, SSL_CTX *certified, int fd, const unsigned char key[HK_TLS_KEY],
                              int server, int cipher) {
    BIO *bio = lib->BIO_new(lib->method);
    t->lib = lib;
    t->fd = fd;
    t->certified = certified != NULL;
    t->renew = HK_TLS_RENEW;
    t->cipher = cipher;
    memcpy(t->key, key, HK_TLS_KEY);
    t->ssl = bio ? lib->SSL_new(certified ? certified : lib->context) : NULL;
    /* Mapped: each end uses little of one half, and what comes and goes with communicators leaves no holes in a heap. */
    t->out = (char *)mmap(NULL, HK_TLS_ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (t->out == MAP_FAILED) t->out = NULL;
    if (t->ssl == NULL || t->out == NULL) return -1;
    t->in = t->out + HK_TLS_OUT;
    t->first = t->in + HK_TLS_IN;
    lib->BIO_set_data(bio, t);
    lib->BIO_set_init(bio, 1);
    lib->SSL_set_bio(t->ssl, bio, bio);
    lib->SSL_set_ex_data(t->ssl, 0, t);
    if (server) lib->SSL_set_accept_state(t->ssl);
    else lib->SSL_set_connect_state(t->ssl);
    return server || lib->SSL_set_ciphersuites(t->ssl, hk_tls_ciphers[cipher].suite) == 1 ? 0 : -1;
}

static inline void hk_tls_close(hk_tls *t) {
    if (t->ssl) t->lib->SSL_free(t->ssl);
    if (t->out) munmap(t->out, HK_TLS_ROOM);
    explicit_bzero(t->key, sizeof t->key);
    t->ssl = NULL;
    t->out = NULL;
}

/* What OpenSSL makes of a call that gave `rc`, not more than 0: HK_TLS_AGAIN, HK_TLS_LOST (the other end has gone),
 * HK_TLS_FAULT (what came is not what the other end has sent, or it has another key). */
static inline int hk_tls_failed(hk_tls *t, int rc) {
    hk_ssl *v = t->lib;
    const int what = v->SSL_get_error(t->ssl, rc);
    if (what == SSL_ERROR_WANT_READ || what == SSL_ERROR_WANT_WRITE) return HK_TLS_AGAIN;
    if (t->ended || what == SSL_ERROR_ZERO_RETURN) return HK_TLS_LOST;
    const unsigned long code = v->ERR_peek_error();
    const char *reason = code ? v->ERR_reason_error_string(code) : NULL;
    const long doubt = t->certified ? v->SSL_get_verify_result(t->ssl) : 0;
    if (t->words[0] == 0) { /* later ones have no reason */
        if (doubt)
            snprintf(t->words, sizeof t->words, "the other side's certificate was refused (%s)",
                     v->X509_verify_cert_error_string(doubt));
        else
            snprintf(t->words, sizeof t->words, "altered on its way, or %s (TLS: %s)",
                     t->certified ? "refused by the other side" : "not encrypted with this job's key",
                     reason ? reason : "no reason given");
    }
    t->error = EPROTO;
    return HK_TLS_FAULT;
}

/* 1: all records are with the kernel; HK_TLS_AGAIN; HK_TLS_LOST. */
static inline int hk_tls_flush(hk_tls *t, int more) {
    while (t->out_head < t->out_tail) {
        const long n = send(t->fd, t->out + t->out_head, t->out_tail - t->out_head,
                            MSG_DONTWAIT | MSG_NOSIGNAL | (more ? MSG_MORE : 0));
        if (n < 0) {
            if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return HK_TLS_AGAIN;
            t->error = errno;
            return HK_TLS_LOST;
        }
        t->out_head += (size_t)n;
    }
    t->out_head = t->out_tail = 0;
    return 1;
}

/* A step of the handshake: 1 when it is over, else HK_TLS_AGAIN (wait for POLLOUT if something lies in `out`, for POLLIN
 * if not), HK_TLS_LOST, HK_TLS_FAULT. */
static inline int hk_tls_shake(hk_tls *t) {
    hk_ssl *v = t->lib;
    v->ERR_clear_error();
    const int rc = v->SSL_do_handshake(t->ssl);
    int what = rc == 1 ? 1 : hk_tls_failed(t, rc);
    const int sent = hk_tls_flush(t, 0); /* the alert too, if it has failed */
    if (what == 1 && !t->certified && !v->SSL_session_reused(t->ssl)) {
        snprintf(t->words, sizeof t->words, "the other side has not used this job's key");
        what = HK_TLS_FAULT;
    }
    if (what == HK_TLS_LOST || what == HK_TLS_FAULT) return what;
    return sent == 1 ? what : sent;
}

/* What only the two ends of this connection know (RFC 9266).  1, or 0. */
static inline int hk_tls_binding(hk_tls *t, unsigned char to[HK_TLS_BINDING]) {
    static const char label[] = "EXPORTER-Channel-Binding";
    return t->lib->SSL_export_keying_material(t->ssl, to, HK_TLS_BINDING, label, sizeof label - 1, NULL, 0, 1) == 1;
}

/* Seal `len` bytes into `out`, which has room: `len`, or HK_TLS_FAULT. */
static inline long hk_tls_seal(hk_tls *t, const char *from, size_t len) {
    hk_ssl *v = t->lib;
    v->ERR_clear_error();
    if (t->sealed > t->renew) {
        if (v->SSL_key_update(t->ssl, 0) != 1) return hk_tls_failed(t, -1);
        t->sealed = 0;
    }
    t->sealed += len;
    const int n = v->SSL_write(t->ssl, from, (int)len);
    if (n == (int)len) return n;
    snprintf(t->words, sizeof t->words, "the system's OpenSSL could not encrypt");
    t->error = EPROTO;
    return HK_TLS_FAULT;
}

/* Open records until there are `len` bytes, or no more have come: how many, or HK_TLS_AGAIN, HK_TLS_LOST or
 * HK_TLS_FAULT. */
static inline long hk_tls_unseal(hk_tls *t, char *to, size_t len) {
    hk_ssl *v = t->lib;
    size_t got = 0;
    while (got < len) {
        const size_t left = len - got;
        v->ERR_clear_error();
        const int n = v->SSL_read(t->ssl, to + got, left < HK_TLS_PIECE ? (int)left : HK_TLS_PIECE);
        if (n <= 0) {
            const int why = hk_tls_failed(t, n);
            return got ? (long)got : why; /* an end or a fault is told again by the next call */
        }
        got += (size_t)n;
    }
    return (long)got;
}

#endif
