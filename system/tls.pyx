"""A connected socket inside TLS 1.3 (tls.h), for control connections and for channels (transports/tcp/tls_channels.h).

Policy is in control/encryption.py.  libssl is opened when it is first asked for.
"""

import errno
import os
import threading
from socket import SHUT_RDWR

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint64_t

from hocket.errors import TransportError


cdef extern from "system/libssl.h" nogil:
    ctypedef struct SSL_CTX:
        pass
    ctypedef struct hk_ssl:
        const char* (*OpenSSL_version)(int)
        void (*SSL_CTX_free)(SSL_CTX*)

cdef extern from "system/tls.h" nogil:
    enum: HK_TLS_AGAIN
    enum: HK_TLS_LOST
    enum: HK_TLS_FAULT
    enum: HK_TLS_KEY
    enum: HK_TLS_BINDING
    enum: HK_TLS_RECORD
    int hk_tls_open_library(hk_ssl*, const char*, char*, size_t)
    int hk_tls_certify(hk_ssl*, SSL_CTX**, const char*, const char*, const char*, char*, size_t)
    int hk_tls_open(hk_tls*, hk_ssl*, SSL_CTX*, int, const unsigned char*, int, int)
    int hk_tls_has_aes()
    int hk_tls_binding(hk_tls*, unsigned char*)
    void hk_tls_close(hk_tls*)
    int hk_tls_shake(hk_tls*)
    int hk_tls_flush(hk_tls*, int)
    long hk_tls_seal(hk_tls*, const char*, size_t)
    long hk_tls_unseal(hk_tls*, char*, size_t)

LIBRARY = "libssl.so.3"
KEY = HK_TLS_KEY
"""Bytes of a pre-shared key."""

AES, CHACHA = 0, 1
CIPHERS = ("AES-256-GCM", "ChaCha20-Poly1305")
FASTEST = AES if hk_tls_has_aes() else CHACHA
"""This processor's cipher: the second costs one without AES instructions a fraction of the first."""

cdef hk_ssl library
cdef object opened = None       # None: not tried yet; else why it cannot be used, "" if it can
lock = threading.Lock()


def missing():
    """Why connections cannot be encrypted here, or None."""
    global opened
    cdef char why[256]
    with lock:
        if opened is None:
            why[0] = 0
            failed = hk_tls_open_library(&library, os.fsencode(LIBRARY), why, sizeof(why))
            opened = why.decode(errors="replace") if failed else ""
        return opened or None


def version():
    """The name of the library that encrypts."""
    reason = missing()
    return reason or library.OpenSSL_version(0).decode()


cdef class Certificates:
    """This process's certificate and key, and the authority that the other side's certificate must come from.

    Paths of PEM files.  ValueError(which, why): number `which` of them (0, 1, 2) cannot be used.
    """

    cdef SSL_CTX* context

    def __cinit__(self, str certificate, str key, str authority):
        cdef char why[256]
        reason = missing()
        if reason:
            raise TransportError(f"connections cannot be encrypted: {reason}")
        why[0] = 0
        paths = [os.fsencode(each) for each in (certificate, key, authority)]
        bad = hk_tls_certify(&library, &self.context, paths[0], paths[1], paths[2], why, sizeof(why))
        if bad < 0:
            raise MemoryError
        if bad:
            raise ValueError(bad - 1, why.decode(errors="replace"))

    def __dealloc__(self):
        if self.context != NULL:
            library.SSL_CTX_free(self.context)


cdef class Tls:
    """One end of a connection, over a connected socket, which is not blocking and stays the caller's.

    key: KEY bytes, the same at both ends.  certificates: they say who is who, instead of the key, which is not used.
    cipher: of CIPHERS; the dialling end's is taken.  First `shake` until it says None.
    """

    def __cinit__(self, socket, bytes key, bint server, Certificates certificates=None, int cipher=FASTEST):
        cdef SSL_CTX* certified = NULL if certificates is None else certificates.context
        reason = missing()
        if reason:
            raise TransportError(f"connections cannot be encrypted: {reason}")
        if len(key) != HK_TLS_KEY:
            raise ValueError(f"a key has the wrong length, {len(key)} bytes")
        self.socket = socket
        socket.setblocking(False)
        if hk_tls_open(&self.tls, &library, certified, socket.fileno(), key, server, cipher) != 0:
            raise MemoryError

    def __dealloc__(self):
        if library.OpenSSL_version != NULL:
            hk_tls_close(&self.tls)

    def renew_after(self, uint64_t nbytes):
        """Set the number of bytes that are sent under one key."""
        self.tls.renew = nbytes

    def shake(self):
        """Get on with the handshake: None when it is over, else "read" or "write", what the socket must be ready for."""
        cdef int rc
        with nogil:
            rc = hk_tls_shake(&self.tls)
        if rc == 1:
            return None
        if rc != HK_TLS_AGAIN:
            raise self.failure(rc)
        return "write" if self.tls.out_head < self.tls.out_tail else "read"

    def binding(self):
        """Bytes that both ends of this connection have, and nobody else.  After the handshake."""
        cdef unsigned char data[HK_TLS_BINDING]
        if not hk_tls_binding(&self.tls, data):
            raise TransportError("the system's OpenSSL could not give the binding of a connection")
        return PyBytes_FromStringAndSize(<char*>data, HK_TLS_BINDING)

    cdef object failure(self, int rc):
        if rc == HK_TLS_FAULT:
            return TransportError((<bytes>self.tls.words).decode(errors="replace"))
        number = self.tls.error or errno.ECONNRESET
        return OSError(number, os.strerror(number))

    def close(self):
        self.tls.fd = -1        # who still calls must not meet another file of this number
        self.socket.close()

    def shutdown(self):
        """Both directions end, and the descriptor stays."""
        self.socket.shutdown(SHUT_RDWR)

    def read(self, Py_ssize_t most=0):
        """All that has come, at least a byte; b"" at the end.  BlockingIOError: nothing has come.

        All, as `select` knows nothing of what lies here already.  Or, for who reads on at once, `most` bytes.
        """
        cdef bytes room
        cdef long n
        pieces = []
        self.tls.only = 2           # the socket is asked once
        while True:
            room = PyBytes_FromStringAndSize(NULL, HK_TLS_RECORD)
            n = hk_tls_unseal(&self.tls, PyBytes_AS_STRING(room), most if 0 < most < HK_TLS_RECORD else HK_TLS_RECORD)
            if n < 0:
                break
            pieces.append(room[:n])
            if most:
                break
        self.tls.only = 0
        if n == HK_TLS_FAULT:           # at once, as the socket may have no more to say
            raise self.failure(HK_TLS_FAULT)
        if pieces:
            return b"".join(pieces)
        if n == HK_TLS_AGAIN:
            raise BlockingIOError(errno.EAGAIN, "nothing has come")
        if n == HK_TLS_LOST and self.tls.error == 0:
            return b""
        raise self.failure(<int>n)

    def write(self, data):
        """Send; the number of bytes of `data` that have been sent, at least one.  BlockingIOError: the same data must
        come again."""
        cdef bytes piece
        cdef int rc
        if not self.unsettled:
            piece = bytes(data[:HK_TLS_RECORD])
            rc = <int>hk_tls_seal(&self.tls, piece, len(piece))
            if rc < 0:
                raise self.failure(rc)
            self.unsettled = len(piece)
        rc = hk_tls_flush(&self.tls, 0)
        if rc == HK_TLS_AGAIN:
            raise BlockingIOError(errno.EAGAIN, "the peer does not read")
        if rc < 0:
            raise self.failure(rc)
        sent, self.unsettled = self.unsettled, 0
        return sent
