/* What hocket uses of OpenSSL 3, which is opened when it is first asked for: no build and no wheel needs it.
 *
 * The names are OpenSSL's own, so its manual pages (SSL_read(3), ...) describe them; do not include both.  What its
 * headers have as macros are numbers here.  libssl brings libcrypto along, and a name is looked for in both. */
#ifndef HK_LIBSSL_H
#define HK_LIBSSL_H

#include <stdint.h>
#include <stdio.h>

#include "system/foreign.h"

enum { SSL_ERROR_WANT_READ = 2, SSL_ERROR_WANT_WRITE = 3, SSL_ERROR_ZERO_RETURN = 6 };
enum { SSL_FILETYPE_PEM = 1, SSL_VERIFY_PEER = 1, SSL_VERIFY_FAIL_IF_NO_PEER_CERT = 2 };
enum { SSL_CTRL_SET_MIN_PROTO_VERSION = 123, TLS1_3_VERSION = 0x0304 };
enum { BIO_TYPE_SOURCE_SINK = 0x0400, BIO_CTRL_FLUSH = 11, BIO_READ = 1, BIO_WRITE = 2, BIO_SHOULD_RETRY = 8 };

typedef struct ssl_st SSL;
typedef struct ssl_ctx_st SSL_CTX;
typedef struct ssl_method_st SSL_METHOD;
typedef struct ssl_session_st SSL_SESSION;
typedef struct ssl_cipher_st SSL_CIPHER;
typedef struct bio_st BIO;
typedef struct bio_method_st BIO_METHOD;
typedef struct evp_md_st EVP_MD;
typedef int (*hk_psk_use)(SSL *, const EVP_MD *, const unsigned char **, size_t *, SSL_SESSION **);
typedef int (*hk_password)(char *, int, int, void *);
typedef int (*hk_psk_find)(SSL *, const unsigned char *, size_t, SSL_SESSION **);

/* The functions, by name. */
#define HK_SSL_FUNCTIONS(X) \
    X(unsigned long, OpenSSL_version_num, (void)) \
    X(const char *, OpenSSL_version, (int)) \
    X(const SSL_METHOD *, TLS_method, (void)) \
    X(SSL_CTX *, SSL_CTX_new, (const SSL_METHOD *)) \
    X(void, SSL_CTX_free, (SSL_CTX *)) \
    X(long, SSL_CTX_ctrl, (SSL_CTX *, int, long, void *)) \
    X(int, SSL_CTX_set_ciphersuites, (SSL_CTX *, const char *)) \
    X(int, SSL_set_ciphersuites, (SSL *, const char *)) \
    X(int, SSL_CTX_set_num_tickets, (SSL_CTX *, size_t)) \
    X(void, SSL_CTX_set_psk_use_session_callback, (SSL_CTX *, hk_psk_use)) \
    X(void, SSL_CTX_set_psk_find_session_callback, (SSL_CTX *, hk_psk_find)) \
    X(int, SSL_CTX_use_certificate_chain_file, (SSL_CTX *, const char *)) \
    X(int, SSL_CTX_use_PrivateKey_file, (SSL_CTX *, const char *, int)) \
    X(int, SSL_CTX_load_verify_file, (SSL_CTX *, const char *)) \
    X(void, SSL_CTX_set_default_passwd_cb, (SSL_CTX *, hk_password)) \
    X(void, SSL_CTX_set_verify, (SSL_CTX *, int, int (*)(int, void *))) \
    X(SSL *, SSL_new, (SSL_CTX *)) \
    X(void, SSL_free, (SSL *)) \
    X(void, SSL_set_bio, (SSL *, BIO *, BIO *)) \
    X(int, SSL_set_ex_data, (SSL *, int, void *)) \
    X(void *, SSL_get_ex_data, (const SSL *, int)) \
    X(void, SSL_set_connect_state, (SSL *)) \
    X(void, SSL_set_accept_state, (SSL *)) \
    X(int, SSL_do_handshake, (SSL *)) \
    X(int, SSL_session_reused, (const SSL *)) \
    X(long, SSL_get_verify_result, (const SSL *)) \
    X(const char *, X509_verify_cert_error_string, (long)) \
    X(int, SSL_export_keying_material, \
      (SSL *, unsigned char *, size_t, const char *, size_t, const unsigned char *, size_t, int)) \
    X(int, SSL_read, (SSL *, void *, int)) \
    X(int, SSL_write, (SSL *, const void *, int)) \
    X(int, SSL_key_update, (SSL *, int)) \
    X(int, SSL_get_error, (const SSL *, int)) \
    X(const SSL_CIPHER *, SSL_CIPHER_find, (SSL *, const unsigned char *)) \
    X(SSL_SESSION *, SSL_SESSION_new, (void)) \
    X(void, SSL_SESSION_free, (SSL_SESSION *)) \
    X(int, SSL_SESSION_set1_master_key, (SSL_SESSION *, const unsigned char *, size_t)) \
    X(int, SSL_SESSION_set_cipher, (SSL_SESSION *, const SSL_CIPHER *)) \
    X(int, SSL_SESSION_set_protocol_version, (SSL_SESSION *, int)) \
    X(int, BIO_get_new_index, (void)) \
    X(BIO_METHOD *, BIO_meth_new, (int, const char *)) \
    X(int, BIO_meth_set_read, (BIO_METHOD *, int (*)(BIO *, char *, int))) \
    X(int, BIO_meth_set_write, (BIO_METHOD *, int (*)(BIO *, const char *, int))) \
    X(int, BIO_meth_set_ctrl, (BIO_METHOD *, long (*)(BIO *, int, long, void *))) \
    X(BIO *, BIO_new, (const BIO_METHOD *)) \
    X(void, BIO_set_data, (BIO *, void *)) \
    X(void *, BIO_get_data, (BIO *)) \
    X(void, BIO_set_init, (BIO *, int)) \
    X(void, BIO_set_flags, (BIO *, int)) \
    X(void, BIO_clear_flags, (BIO *, int)) \
    X(void, ERR_clear_error, (void)) \
    X(unsigned long, ERR_peek_error, (void)) \
    X(const char *, ERR_reason_error_string, (unsigned long))

typedef struct hk_ssl {
    void *library;
    SSL_CTX *context; /* of this process, for both roles: pre-shared keys */
    BIO_METHOD *method;
#define HK_SSL_MEMBER(result, name, arguments) result(*name) arguments;
    HK_SSL_FUNCTIONS(HK_SSL_MEMBER)
#undef HK_SSL_MEMBER
} hk_ssl;

/* Open the library `path`.  0, or -1 with the reason in `why`. */
static inline int hk_ssl_load(hk_ssl *v, const char *path, char *why, size_t room) {
    if ((v->library = hk_foreign_open(path, why, room)) == NULL)
        return -1;
#define HK_SSL_FIND(result, name, arguments) \
    if ((*(void **)&v->name = hk_foreign_find(v->library, path, #name, why, room)) == NULL) \
        return -1;
    HK_SSL_FUNCTIONS(HK_SSL_FIND)
#undef HK_SSL_FIND
    if (v->OpenSSL_version_num() < 0x30000000) {
        snprintf(why, room, "%s is %s, and 3.0 is needed", path, v->OpenSSL_version(0));
        return -1;
    }
    return 0;
}

#endif
