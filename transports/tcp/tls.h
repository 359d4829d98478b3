/* A byte stream (stream.h) inside TLS 1.3: what the network carries can neither be read nor altered.
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
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include "transports/channel.h"
#include "transports/tcp/libssl.h"
#include "transports/tcp/stream.h"

enum {
    HK_TLS_KEY = 48,         /* bytes: of SHA-384 */
    HK_TLS_BINDING = 32,     /* bytes that this very connection has, and no other */
    HK_TLS_RECORD = 16384,   /* plain bytes of the longest record */
    HK_TLS_PIECE = 131072,   /* plain bytes per call, so that sending and receiving take turns */
    HK_TLS_OUT = HK_TLS_PIECE + 16384, /* ... sealed, or a handshake's flight */
    HK_TLS_IN = 65536,
    HK_TLS_ROOM = HK_TLS_OUT + HK_TLS_IN + HK_TLS_RECORD
};

/* The one for processors with AES instructions, and the one for others, each with the name that a pre-shared key has
 * with it: a key is bound to a cipher's hash. */
typedef struct hk_tls_cipher {
    const char *suite, *id;
    unsigned char number[2];
} hk_tls_cipher;
static const hk_tls_cipher hk_tls_ciphers[2] = {
    {"TLS_AES_256_GCM_SHA384", "hocket aes", {0x13, 0x02}},
    {"TLS_CHACHA20_POLY1305_SHA256", "hocket chacha", {0x13, 0x03}},
};
#define HK_TLS_RENEW ((uint64_t)1 << 37) /* bytes under one key: half of what RFC 8446 allows AES-GCM */

typedef struct hk_tls {
    hk_ssl *lib;
    SSL *ssl;
    int fd, certified;           /* certified: by certificates, not by a key */
    int cipher;                  /* of hk_tls_ciphers, at the dialling end */
    unsigned char key[HK_TLS_KEY];
    char *out, *in, *first;      /* HK_TLS_OUT, HK_TLS_IN, HK_TLS_RECORD bytes */
    size_t out_head, out_tail;   /* not yet with the kernel */
    size_t in_head, in_tail;     /* not yet with OpenSSL */
    int only;                    /* if not 0: what has been received last is all there is for now */
    int error, ended;            /* errno of the socket; it has come to its end */
    uint64_t sealed, renew;      /* bytes since the key was renewed, and how many are too many */
    char words[128];             /* what went wrong, for people */
} hk_tls;

/* ------------------------------------------------------------------------------------------- below OpenSSL */

static hk_ssl *hk_tls_library; /* for callbacks that are given no more than a BIO */

static int hk_tls_bio_write(BIO *bio, const char *from, int len) {
    hk_tls *t = (hk_tls *)hk_tls_library->BIO_get_data(bio);
    hk_tls_library->BIO_clear_flags(bio, BIO_WRITE | BIO_READ | BIO_SHOULD_RETRY);
    if ((size_t)len > HK_TLS_OUT - t->out_tail) {
        hk_tls_library->BIO_set_flags(bio, BIO_WRITE | BIO_SHOULD_RETRY);
        return -1;
    }
    memcpy(t->out + t->out_tail, from, (size_t)len);
    t->out_tail += (size_t)len;
    return len;
}

static int hk_tls_bio_read(BIO *bio, char *to, int len) {
    hk_tls *t = (hk_tls *)hk_tls_library->BIO_get_data(bio);
    hk_tls_library->BIO_clear_flags(bio, BIO_WRITE | BIO_READ | BIO_SHOULD_RETRY);
    if (t->in_head == t->in_tail) {
        const long n = t->only == 1 ? -1 : recv(t->fd, t->in, HK_TLS_IN, MSG_DONTWAIT);
        if (n == 0) {
            t->ended = 1;
            return 0;
        }
        if (n < 0) {
            if (t->only == 1 || errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) {
                hk_tls_library->BIO_set_flags(bio, BIO_READ | BIO_SHOULD_RETRY);
            } else {
                t->error = errno;
                t->ended = 1;
            }
            return -1;
        }
        if (t->only == 2) t->only = 1;
        t->in_head = 0;
        t->in_tail = (size_t)n;
    }
    size_t n = t->in_tail - t->in_head;
    if (n > (size_t)len) n = (size_t)len;
    memcpy(to, t->in + t->in_head, n);
    t->in_head += n;
    return (int)n;
}

static long hk_tls_bio_ctrl(BIO *bio, int what, long number, void *pointer) {
    (void)bio, (void)number, (void)pointer;
    return what == BIO_CTRL_FLUSH;
}

static inline SSL_SESSION *hk_tls_session(SSL *ssl, const hk_tls_cipher *with) {
    hk_ssl *v = hk_tls_library;
    hk_tls *t = (hk_tls *)v->SSL_get_ex_data(ssl, 0);
    const SSL_CIPHER *cipher = v->SSL_CIPHER_find(ssl, with->number);
    SSL_SESSION *s = v->SSL_SESSION_new();
    if (s == NULL) return NULL;
    if (cipher && v->SSL_SESSION_set1_master_key(s, t->key, HK_TLS_KEY) && v->SSL_SESSION_set_cipher(s, cipher) &&
        v->SSL_SESSION_set_protocol_version(s, TLS1_3_VERSION))
        return s;
    v->SSL_SESSION_free(s);
    return NULL;
}

static int hk_tls_use(SSL *ssl, const EVP_MD *md, const unsigned char **id, size_t *n, SSL_SESSION **session) {
    (void)md;
    const hk_tls_cipher *c = hk_tls_ciphers + ((hk_tls *)hk_tls_library->SSL_get_ex_data(ssl, 0))->cipher;
    *id = (const unsigned char *)c->id;
    *n = strlen(c->id);
    *session = hk_tls_session(ssl, c);
    return *session != NULL;
}

static int hk_tls_find(SSL *ssl, const unsigned char *id, size_t n, SSL_SESSION **session) {
    *session = NULL; /* with no session there is no certificate to go on with: the handshake fails */
    for (int i = 0; i < 2; i++)
        if (n == strlen(hk_tls_ciphers[i].id) && memcmp(id, hk_tls_ciphers[i].id, n) == 0)
            *session = hk_tls_session(ssl, hk_tls_ciphers + i);
    return 1;
}

/* Does this processor encrypt with AES fast, and without telling others of its caches how? */
static inline int hk_tls_has_aes(void) {
#if defined(__x86_64__) || defined(__i386__)
    unsigned a, b, c = 0, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_AES) && (c & bit_PCLMUL);
#elif defined(__aarch64__)
    return (getauxval(AT_HWCAP) & (HWCAP_AES | HWCAP_PMULL)) == (HWCAP_AES | HWCAP_PMULL);
#else
    return 1; /* POWER and z have them */
#endif
}

/* ------------------------------------------------------------------------------------------- the two ends */

static inline SSL_CTX *hk_tls_context(hk_ssl *v) {
    SSL_CTX *context = v->SSL_CTX_new(v->TLS_method());
    if (context && v->SSL_CTX_ctrl(context, SSL_CTRL_SET_MIN_PROTO_VERSION, TLS1_3_VERSION, NULL) &&
        v->SSL_CTX_set_ciphersuites(context, "TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256") &&
        v->SSL_CTX_set_num_tickets(context, 0))
        return context;
    v->SSL_CTX_free(context);
    return NULL;
}

/* Open the library, once in a process.  0, or -1 with the reason in `why`. */
static inline int hk_tls_open_library(hk_ssl *v, const char *path, char *why, size_t room) {
    if (hk_ssl_load(v, path, why, room) != 0) return -1;
    v->context = hk_tls_context(v);
    v->method = v->BIO_meth_new(v->BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "hocket");
    if (v->context == NULL || v->method == NULL || !v->BIO_meth_set_read(v->method, hk_tls_bio_read) ||
        !v->BIO_meth_set_write(v->method, hk_tls_bio_write) || !v->BIO_meth_set_ctrl(v->method, hk_tls_bio_ctrl)) {
        snprintf(why, room, "%s does not offer TLS 1.3 with AES-256-GCM", v->OpenSSL_version(0));
        return -1;
    }
    v->SSL_CTX_set_psk_use_session_callback(v->context, hk_tls_use);
    v->SSL_CTX_set_psk_find_session_callback(v->context, hk_tls_find);
    hk_tls_library = v;
    return 0;
}

/* Never asks for a key's passphrase: nobody sits there. */
static int hk_tls_no_password(char *to, int room, int writing, void *user) {
    (void)to, (void)room, (void)writing, (void)user;
    return -1;
}

/* For both roles: this process's certificate (with those between it and the authority), its key, and the authorities
 * that the other's certificate must come from; paths of PEM files.  0, or which of them (1, 2, 3) cannot be used, with
 * the reason in `why`; -1: no memory. */
static inline int hk_tls_certify(hk_ssl *v, SSL_CTX **made, const char *certificate, const char *key,
                                 const char *authority, char *why, size_t room) {
    SSL_CTX *context = hk_tls_context(v);
    if (context == NULL) return -1;
    v->SSL_CTX_set_default_passwd_cb(context, hk_tls_no_password);
    v->SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    v->ERR_clear_error();
    int bad = 0;
    if (v->SSL_CTX_use_certificate_chain_file(context, certificate) != 1) bad = 1;
    else if (v->SSL_CTX_use_PrivateKey_file(context, key, SSL_FILETYPE_PEM) != 1) bad = 2;
    else if (v->SSL_CTX_load_verify_file(context, authority) != 1) bad = 3;
    if (bad) {
        const char *reason = v->ERR_reason_error_string(v->ERR_peek_error());
        snprintf(why, room, "%s", reason ? reason : "no reason given");
        v->SSL_CTX_free(context);
        context = NULL;
    }
    *made = context;
    return bad;
}

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

/* What OpenSSL makes of a call that gave `rc`, not more than 0: HK_AGAIN, HK_LOST (the other end has gone), HK_FAULT
 * (what came is not what the other end has sent, or it has another key). */
static inline int hk_tls_failed(hk_tls *t, int rc) {
    hk_ssl *v = t->lib;
    const int what = v->SSL_get_error(t->ssl, rc);
    if (what == SSL_ERROR_WANT_READ || what == SSL_ERROR_WANT_WRITE) return HK_AGAIN;
    if (t->ended || what == SSL_ERROR_ZERO_RETURN) return HK_LOST;
    const unsigned long code = v->ERR_peek_error();
    const char *reason = code ? v->ERR_reason_error_string(code) : NULL;
    const long doubt = t->certified ? v->SSL_get_verify_result(t->ssl) : 0;
    if (t->words[0] == 0) { /* later ones have no reason */
        if (doubt)
            snprintf(t->words, sizeof t->words, "the other side's certificate is not taken (%s)",
                     v->X509_verify_cert_error_string(doubt));
        else
            snprintf(t->words, sizeof t->words, "altered on its way, or %s (TLS: %s)",
                     t->certified ? "refused by the other side" : "not encrypted with this job's key",
                     reason ? reason : "no reason given");
    }
    t->error = EPROTO;
    return HK_FAULT;
}

/* 1: all records are with the kernel; HK_AGAIN; HK_LOST. */
static inline int hk_tls_flush(hk_tls *t, int more) {
    while (t->out_head < t->out_tail) {
        const long n = send(t->fd, t->out + t->out_head, t->out_tail - t->out_head,
                            MSG_DONTWAIT | MSG_NOSIGNAL | (more ? MSG_MORE : 0));
        if (n < 0) {
            if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return HK_AGAIN;
            t->error = errno;
            return HK_LOST;
        }
        t->out_head += (size_t)n;
    }
    t->out_head = t->out_tail = 0;
    return 1;
}

/* A step of the handshake: 1 when it is over, else HK_AGAIN (wait for POLLOUT if something lies in `out`, for POLLIN if
 * not), HK_LOST, HK_FAULT. */
static inline int hk_tls_shake(hk_tls *t) {
    hk_ssl *v = t->lib;
    v->ERR_clear_error();
    const int rc = v->SSL_do_handshake(t->ssl);
    int what = rc == 1 ? 1 : hk_tls_failed(t, rc);
    const int sent = hk_tls_flush(t, 0); /* the alert too, if it has failed */
    if (what == 1 && !t->certified && !v->SSL_session_reused(t->ssl)) {
        snprintf(t->words, sizeof t->words, "the other side has not used this job's key");
        what = HK_FAULT;
    }
    if (what == HK_LOST || what == HK_FAULT) return what;
    return sent == 1 ? what : sent;
}

/* What only the two ends of this connection know (RFC 9266).  1, or 0. */
static inline int hk_tls_binding(hk_tls *t, unsigned char to[HK_TLS_BINDING]) {
    static const char label[] = "EXPORTER-Channel-Binding";
    return t->lib->SSL_export_keying_material(t->ssl, to, HK_TLS_BINDING, label, sizeof label - 1, NULL, 0, 1) == 1;
}

/* Seal `len` bytes into `out`, which has room: `len`, or HK_FAULT. */
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
    return HK_FAULT;
}

/* Open records until there are `len` bytes, or no more have come: how many, or HK_AGAIN, HK_LOST, HK_FAULT. */
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

/* ------------------------------------------------------------------------------------------- as channels */

typedef struct hk_tls_sender {
    hk_channel base;
    hk_tls *tls;
} hk_tls_sender;

typedef struct hk_tls_receiver {
    hk_receiver plain;
    hk_tls *tls; /* before `fd` is set */
} hk_tls_receiver;

static inline int hk_tls_tell(hk_channel *ch, const hk_tls *t, int rc) {
    if (rc == HK_LOST || rc == HK_FAULT) {
        ch->error = t->error;
        ch->words = t->words[0] ? t->words : NULL;
    }
    return rc;
}

/* Taken is what was sealed: nothing of it lies in the caller's memory, but the end of the message may lie in `out`. */
static long hk_tls_send(hk_channel *ch, uint64_t tag, uint64_t length, uint64_t done, const void *src, size_t len) {
    hk_tls *t = ((hk_tls_sender *)ch)->tls;
    const int before = hk_tls_flush(t, 0);
    if (before != 1) return hk_tls_tell(ch, t, before);
    size_t taken = 0;
    if (len > HK_TLS_PIECE) len = HK_TLS_PIECE;
    if (done == 0) { /* the header and what follows it fill a record */
        taken = len < HK_TLS_RECORD - HK_FRAME_BYTES ? len : HK_TLS_RECORD - HK_FRAME_BYTES;
        hk_frame_write(t->first, tag, length);
        if (taken) memcpy(t->first + HK_FRAME_BYTES, src, taken);
        const long n = hk_tls_seal(t, t->first, HK_FRAME_BYTES + taken);
        if (n < 0) return hk_tls_tell(ch, t, (int)n);
    }
    if (taken < len) {
        const long n = hk_tls_seal(t, (const char *)src + taken, len - taken);
        if (n < 0) return hk_tls_tell(ch, t, (int)n);
        taken = len;
    }
    if (hk_tls_flush(t, done + taken < length) == HK_LOST) return hk_tls_tell(ch, t, HK_LOST);
    return (long)taken;
}

static int hk_tls_settled(hk_channel *ch) {
    hk_tls *t = ((hk_tls_sender *)ch)->tls;
    const int rc = hk_tls_flush(t, 0);
    return rc == HK_AGAIN ? 0 : hk_tls_tell(ch, t, rc);
}

static long hk_tls_read(hk_receiver *r, void *dst, size_t len) {
    hk_tls *t = ((hk_tls_receiver *)r)->tls;
    const long n = hk_tls_unseal(t, (char *)dst, len < HK_TLS_PIECE ? len : HK_TLS_PIECE);
    return n > 0 ? n : hk_tls_tell(&r->base, t, (int)n);
}

static int hk_tls_peek(hk_channel *ch, hk_view *v, size_t want) { return hk_peek_by(hk_tls_read, ch, v, want); }
static long hk_tls_recv(hk_channel *ch, void *dst, size_t len) { return hk_recv_by(hk_tls_read, ch, dst, len); }

static const hk_channel_ops hk_tls_sender_ops = {.send = hk_tls_send, .settled = hk_tls_settled};
static const hk_channel_ops hk_tls_receiver_ops = {
    .peek = hk_tls_peek, .consume = hk_stream_consume, .recv = hk_tls_recv};

#endif
