
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The stored form: what a store keeps of a request and of its response.
 *
 * A claim says what a request is (its fingerprint and who asks); it stands in
 * the record from begin on.  A response is what a completed record replays.
 * Both are encoded to bytes that any host of the same release, or of the one
 * before or after, can read.  Pure functions on bytes: no request, no pool,
 * no store; they validate everything they read, and never trust a length.
 */


#ifndef _NGX_HTTP_IDEM_RECORD_H_INCLUDED_
#define _NGX_HTTP_IDEM_RECORD_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


#define NGX_HTTP_IDEM_RECORD_VERSION   1

/* lengths have 32 bits */
#define NGX_HTTP_IDEM_RECORD_MAX_LEN   0xffffffff

#define NGX_HTTP_IDEM_ID_LEN           32
#define NGX_HTTP_IDEM_TOKEN_LEN        16
#define NGX_HTTP_IDEM_FINGERPRINT_LEN  32
#define NGX_HTTP_IDEM_IDENTITY_LEN     16
#define NGX_HTTP_IDEM_TARGET_LEN       8


typedef enum {
    NGX_HTTP_IDEM_IN_PROGRESS = 1,
    NGX_HTTP_IDEM_COMPLETED,
    NGX_HTTP_IDEM_UNUSABLE
} ngx_http_idem_state_e;


/* why there is no response to replay; the numbers are stored */

typedef enum {
    NGX_HTTP_IDEM_REASON_NONE = 0,
    NGX_HTTP_IDEM_REASON_UNKNOWN,            /* it may have run           */
    NGX_HTTP_IDEM_REASON_TOO_LARGE,          /* over max_response         */
    NGX_HTTP_IDEM_REASON_STREAM,             /* an endless response       */
    NGX_HTTP_IDEM_REASON_NO_ROOM,            /* the store was full        */
    NGX_HTTP_IDEM_REASON_EVICTED,            /* it was, and gave way      */
    NGX_HTTP_IDEM_REASON_DELETED             /* by hand: what is left keeps a
                                                holder from writing it anew,
                                                and nobody from beginning */
} ngx_http_idem_reason_e;


typedef struct {
    u_char       fingerprint[NGX_HTTP_IDEM_FINGERPRINT_LEN];
    u_char       identity[NGX_HTTP_IDEM_IDENTITY_LEN];
    u_char       target[NGX_HTTP_IDEM_TARGET_LEN];
                                  /* method, host and URI, apart from the
                                     rest of the fingerprint: comparable
                                     whatever the scheme                  */
    uint32_t     scheme;          /* how the fingerprint was made         */
    uint64_t     time;            /* arrival, ms since the epoch          */
} ngx_http_idem_claim_t;


/* version, scheme, time, fingerprint, identity, target */
#define NGX_HTTP_IDEM_CLAIM_LEN                                               \
    (1 + 4 + 8 + NGX_HTTP_IDEM_FINGERPRINT_LEN                                \
     + NGX_HTTP_IDEM_IDENTITY_LEN + NGX_HTTP_IDEM_TARGET_LEN)


/*
 * Headers to which nginx keeps a pointer in r->headers_out beside the list:
 * a replay sets the pointer again, or filters below would not see them.
 */

typedef enum {
    NGX_HTTP_IDEM_HEADER_PLAIN = 0,
    NGX_HTTP_IDEM_HEADER_LOCATION,
    NGX_HTTP_IDEM_HEADER_ETAG,
    NGX_HTTP_IDEM_HEADER_LAST_MODIFIED,
    NGX_HTTP_IDEM_HEADER_CONTENT_ENCODING,
    NGX_HTTP_IDEM_HEADER_SERVER,
    NGX_HTTP_IDEM_HEADER_EXPIRES,
    NGX_HTTP_IDEM_HEADER_CACHE_CONTROL,
    NGX_HTTP_IDEM_HEADER_WWW_AUTHENTICATE,
    NGX_HTTP_IDEM_HEADER_ACCEPT_RANGES,
    NGX_HTTP_IDEM_HEADER_REFRESH,
    NGX_HTTP_IDEM_HEADER_CONTENT_TYPE,
    NGX_HTTP_IDEM_HEADER_LINK
} ngx_http_idem_header_e;


typedef struct {
    ngx_http_idem_header_e  kind;
    unsigned                valid:1;   /* "header_valid" said so   */
    ngx_str_t               name;
    ngx_str_t               value;
} ngx_http_idem_header_t;


typedef struct {
    ngx_uint_t               status;
    ngx_str_t                status_line;     /* "200 OK", or empty */
    uint64_t                 time;                   /* as in the claim   */
    int64_t                  content_length;         /* of a response that
                                                        has no body: HEAD,
                                                        204, 304; or -1   */
    ngx_http_idem_header_t  *headers;
    ngx_uint_t               nheaders;
    size_t                   body_len;               /* as stored         */
    size_t                   plain_len;              /* uncompressed      */
    unsigned                 header_only:1;
    unsigned                 compressed:1;           /* body is zlib      */
} ngx_http_idem_response_t;


void ngx_http_idem_claim_encode(u_char *p,
    const ngx_http_idem_claim_t *claim);
ngx_int_t ngx_http_idem_claim_decode(const u_char *p, size_t len,
    ngx_http_idem_claim_t *claim);

/*
 * Whether two claims are of one and the same request by one and the same
 * client.  Fingerprints of different schemes can't be compared as a whole: a
 * changed configuration is not taken for a changed request.  Who asks can be,
 * and for which operation, unless "key_alone" decides that.
 */
ngx_uint_t ngx_http_idem_claim_same(const ngx_http_idem_claim_t *a,
    const ngx_http_idem_claim_t *b, ngx_uint_t key_alone);
ngx_uint_t ngx_http_idem_claim_same_identity(const ngx_http_idem_claim_t *a,
    const ngx_http_idem_claim_t *b);


/*
 * Whether a header can be stored: the name is a token, and the value has no
 * NUL, CR or LF.  nginx lets some more through in a name.
 */
ngx_uint_t ngx_http_idem_header_valid(const ngx_str_t *name,
    const ngx_str_t *value);

/* no byte that ends a line, or a string: the value by itself */
ngx_uint_t ngx_http_idem_text_valid(const u_char *p, size_t len);


/*
 * An encoded response is a head, then the body as it is.  "head_size" is the
 * exact size of the head, or 0 for a response that decoding would refuse: a
 * number too large for its field, a header that is not valid (what is marked
 * as valid is not looked at again), a status below 100 or above 999, or
 * header_only with a body.  A status line that can't be stored is left out.
 * The lengths of the body do not change the size: who asks before they are
 * known sees to it that they fit.  "head_encode" writes the head, without a
 * checksum, and returns its end.  "head_seal" puts the checksum in, for bytes
 * that leave the process.  It covers head and body: pass that of the body, made
 * with "body_sum" over its pieces in order, beginning with the one below.  It
 * is Adler-32, which for a few hundred bytes takes a third of a CRC's time.
 */
#define NGX_HTTP_IDEM_SUM  1

size_t ngx_http_idem_head_size(const ngx_http_idem_response_t *response);
uint32_t ngx_http_idem_body_sum(uint32_t sum, const u_char *p, size_t len);
u_char *ngx_http_idem_head_encode(u_char *p,
    const ngx_http_idem_response_t *response);
void ngx_http_idem_head_seal(u_char *p, size_t head_len, uint32_t body_sum);


/*
 * Decoding is in two steps, since the caller owns the memory: "head_peek"
 * says how many headers there are, then "response_decode" fills "headers",
 * which the caller has set (room for that many), and all other members but
 * not the pointer itself; names and values point into "p", and "body" is set.
 * "verify" compares the checksum: for bytes that left the process.
 * NGX_ERROR for anything that is not a whole record of a version we read,
 * with a word in "reason".
 */
ngx_int_t ngx_http_idem_head_peek(const u_char *p, size_t len,
    ngx_uint_t *nheaders, const char **reason);
ngx_int_t ngx_http_idem_response_decode(const u_char *p, size_t len,
    ngx_http_idem_response_t *response, ngx_str_t *body,
    ngx_uint_t verify, const char **reason);

/* whether the bytes are a record with the right checksum: "verify" by itself */
ngx_uint_t ngx_http_idem_response_intact(const u_char *p, size_t len);

/* the status, from the first bytes of the head; 0: it is not there */
#define NGX_HTTP_IDEM_STATUS_PEEK  10

ngx_uint_t ngx_http_idem_response_status(const u_char *p, size_t len);

/* a checksum for a record that had none, and leaves the process now */
void ngx_http_idem_response_seal(u_char *p, size_t len);


/* ..._labels.c: labels of a record, before its details; numbers are stored */

typedef enum {
    NGX_HTTP_IDEM_LABEL_GROUP = 0,
    NGX_HTTP_IDEM_LABEL_TENANT,
    NGX_HTTP_IDEM_LABEL_ACTOR,
    NGX_HTTP_IDEM_LABEL_HOST,                /* of its holder             */
    NGX_HTTP_IDEM_LABEL_N
} ngx_http_idem_label_e;

/* of each; a hash in hexadecimal is of 64 */
#define NGX_HTTP_IDEM_LABEL_MAX  96

/* ... and of all that stands before the details */
#define NGX_HTTP_IDEM_LABELS_MAX                                              \
    (3 + NGX_HTTP_IDEM_LABEL_N * (2 + NGX_HTTP_IDEM_LABEL_MAX))

/* of all of them, "labels" are NGX_HTTP_IDEM_LABEL_N strings; 0: none */
size_t ngx_http_idem_labels_size(const ngx_str_t *labels);
u_char *ngx_http_idem_labels_encode(u_char *p, const ngx_str_t *labels);

/* empty: there is none */
void ngx_http_idem_label(const ngx_str_t *details,
    ngx_http_idem_label_e kind, ngx_str_t *value);

/* leaves the details proper */
void ngx_http_idem_labels_skip(ngx_str_t *details);


#endif /* _NGX_HTTP_IDEM_RECORD_H_INCLUDED_ */
