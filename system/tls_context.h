/* What OpenSSL is given of a process's streams in TLS (tls.h): where their bytes come from and go to, their keys, ciphers
 * and certificates. */
#ifndef HK_TLS_CONTEXT_H
#define HK_TLS_CONTEXT_H

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include "system/libssl.h"

enum {
    HK_TLS_AGAIN = -1, /* nothing could be done now */
    HK_TLS_LOST = -2,  /* the other end has gone */
    HK_TLS_FAULT = -3  /* it says what it may not, or the system refused: `words` */
};

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

#endif
