
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The stored form of a request's claim and of its response.
 *
 * A claim says what a request is: its fingerprint, and who sent it.  A record
 * has its claim from begin on.  A response is what a completed record
 * replays.  Both are encoded to bytes that any host with the same release, or
 * with the one before or after, can read.  These are pure functions on bytes:
 * no request, no pool, no store.  They validate everything that they read,
 * and never trust a length.
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


/* reads the id of a record; NGX_DECLINED: "hex" is not one */

static ngx_inline ngx_int_t
ngx_http_idem_id_parse(u_char *hex, size_t len, u_char *id)
{
    ngx_int_t   n;
    ngx_uint_t  i;

    if (len != 2 * NGX_HTTP_IDEM_ID_LEN) {
        return NGX_DECLINED;
    }

    for (i = 0; i < NGX_HTTP_IDEM_ID_LEN; i++) {
        n = ngx_hextoi(hex + 2 * i, 2);

        if (n == NGX_ERROR) {
            return NGX_DECLINED;
        }

        id[i] = (u_char) n;
    }

    return NGX_OK;
}


typedef enum {
    NGX_HTTP_IDEM_IN_PROGRESS = 1,
    NGX_HTTP_IDEM_COMPLETED,
    NGX_HTTP_IDEM_UNUSABLE
} ngx_http_idem_state_e;


/* why there is no response to replay; the numbers are stored */

typedef enum {
    NGX_HTTP_IDEM_REASON_NONE = 0,
    NGX_HTTP_IDEM_REASON_UNKNOWN,            /* the request may have run  */
    NGX_HTTP_IDEM_REASON_TOO_LARGE,          /* over max_response         */
    NGX_HTTP_IDEM_REASON_STREAM,             /* an endless response       */
    NGX_HTTP_IDEM_REASON_NO_ROOM,            /* the store was full        */
    NGX_HTTP_IDEM_REASON_EVICTED,            /* its room was needed       */
    /* by an administrator: what is left stops the commit of a holder, but not
       a new begin */
    NGX_HTTP_IDEM_REASON_DELETED
} ngx_http_idem_reason_e;


typedef struct {
    u_char       fingerprint[NGX_HTTP_IDEM_FINGERPRINT_LEN];
    u_char       identity[NGX_HTTP_IDEM_IDENTITY_LEN];
    /* hash of method, host and URI: unlike the fingerprint, it can be compared
       between different schemes; of a derived record the id of the record of
       the key, or 0 */
    u_char       target[NGX_HTTP_IDEM_TARGET_LEN];
    uint32_t     scheme;          /* how the fingerprint was made         */
    uint64_t     time;            /* arrival, ms since the epoch          */
} ngx_http_idem_claim_t;


/* version, scheme, time, fingerprint, identity, target */
#define NGX_HTTP_IDEM_CLAIM_LEN                                               \
    (1 + 4 + 8 + NGX_HTTP_IDEM_FINGERPRINT_LEN                                \
     + NGX_HTTP_IDEM_IDENTITY_LEN + NGX_HTTP_IDEM_TARGET_LEN)


/*
 * Headers to which nginx keeps a pointer in r->headers_out besides the list.
 * A replay sets the pointer again, or the following filters would not see
 * them.
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
    NGX_HTTP_IDEM_HEADER_LINK,
    NGX_HTTP_IDEM_HEADER_CHARSET               /* X-Accel-Charset          */
} ngx_http_idem_header_e;


typedef struct {
    ngx_http_idem_header_e  kind;
    unsigned                valid:1;   /* header_valid() was true  */
    ngx_str_t               name;
    ngx_str_t               value;
} ngx_http_idem_header_t;


typedef struct {
    ngx_uint_t               status;
    ngx_str_t                status_line;     /* "200 OK", or empty */
    uint64_t                 time;                   /* as in the claim   */
    /* of a response without a body: HEAD, 204, 304; otherwise -1 */
    int64_t                  content_length;
    ngx_http_idem_header_t  *headers;
    ngx_uint_t               nheaders;
    size_t                   body_len;               /* as stored         */
    size_t                   plain_len;              /* uncompressed      */
    unsigned                 header_only:1;
    unsigned                 compressed:1;           /* with zlib         */
} ngx_http_idem_response_t;


void ngx_http_idem_claim_encode(u_char *p,
    const ngx_http_idem_claim_t *claim);
ngx_int_t ngx_http_idem_claim_decode(const u_char *p, size_t len,
    ngx_http_idem_claim_t *claim);

/*
 * Whether two claims are of the same request by the same client.
 * Fingerprints of different schemes can't be compared: a changed
 * configuration is not taken for a changed request.  The identity is still
 * compared, and so are the targets, unless "key_alone" is set.
 */
ngx_uint_t ngx_http_idem_claim_same(const ngx_http_idem_claim_t *a,
    const ngx_http_idem_claim_t *b, ngx_uint_t key_alone);
ngx_uint_t ngx_http_idem_claim_same_identity(const ngx_http_idem_claim_t *a,
    const ngx_http_idem_claim_t *b);


/*
 * Whether a header can be stored: the name is a token, and the value has no
 * NUL, CR or LF.  nginx accepts some more characters in names.
 */
ngx_uint_t ngx_http_idem_header_valid(const ngx_str_t *name,
    const ngx_str_t *value);

/* whether a value has no NUL, CR or LF */
ngx_uint_t ngx_http_idem_text_valid(const u_char *p, size_t len);


/*
 * An encoded response is a head, followed by the body as it is.
 *
 * "head_size" returns the exact size of the head, or 0 for a response that
 * decoding would refuse: a number too large for its field, an invalid header
 * (unless it is marked as valid), a status below 100 or above 999, or
 * header_only with a body.  A status line that can't be stored is left out.
 * The lengths of the body do not change the size; a caller that does not know
 * them yet must make sure that they fit.
 *
 * "head_encode" writes the head without a checksum, and returns its end.
 * "head_seal" adds the checksum, for bytes that leave the process.  The
 * checksum covers head and body: pass the sum of the body, computed by
 * "body_sum" over its pieces in order, starting with NGX_HTTP_IDEM_SUM.  It
 * is Adler-32, which for a few hundred bytes takes a third of the time of a
 * CRC.
 */
#define NGX_HTTP_IDEM_SUM  1

size_t ngx_http_idem_head_size(const ngx_http_idem_response_t *response);
uint32_t ngx_http_idem_body_sum(uint32_t sum, const u_char *p, size_t len);
u_char *ngx_http_idem_head_encode(u_char *p,
    const ngx_http_idem_response_t *response);
void ngx_http_idem_head_seal(u_char *p, size_t head_len, uint32_t body_sum);


/*
 * Decoding takes two steps, since the caller owns the memory.  "head_peek"
 * returns the number of headers.  The caller then sets response->headers to
 * an array of that size, and "response_decode" fills it and all other
 * members.  Names and values point into "p", and so does "body".  "verify"
 * compares the checksum, for bytes that left the process.  NGX_ERROR for
 * anything that is not a complete record of a supported version; "reason"
 * then says why.
 */
ngx_int_t ngx_http_idem_head_peek(const u_char *p, size_t len,
    ngx_uint_t *nheaders, const char **reason);
ngx_int_t ngx_http_idem_response_decode(const u_char *p, size_t len,
    ngx_http_idem_response_t *response, ngx_str_t *body,
    ngx_uint_t verify, const char **reason);

/* whether the bytes are a record with a correct checksum */
ngx_uint_t ngx_http_idem_response_intact(const u_char *p, size_t len);

/* the status in the first bytes of the head; 0: these are not a head */
#define NGX_HTTP_IDEM_STATUS_PEEK  10

ngx_uint_t ngx_http_idem_response_status(const u_char *p, size_t len);

/* adds the checksum to a record that leaves the process now */
void ngx_http_idem_response_seal(u_char *p, size_t len);


/* ..._labels.c: the labels of a record, stored in front of its details; the
   numbers are stored */

typedef enum {
    NGX_HTTP_IDEM_LABEL_GROUP = 0,
    NGX_HTTP_IDEM_LABEL_TENANT,
    NGX_HTTP_IDEM_LABEL_ACTOR,
    NGX_HTTP_IDEM_LABEL_HOST,                /* of the holder             */
    NGX_HTTP_IDEM_LABEL_N
} ngx_http_idem_label_e;

/* length of a label; a hash in hexadecimal has 64 */
#define NGX_HTTP_IDEM_LABEL_MAX  96

/* length of all labels with their header */
#define NGX_HTTP_IDEM_LABELS_MAX                                              \
    (3 + NGX_HTTP_IDEM_LABEL_N * (2 + NGX_HTTP_IDEM_LABEL_MAX))

/* "labels" are NGX_HTTP_IDEM_LABEL_N strings; the size is 0 if all are
   empty */
size_t ngx_http_idem_labels_size(const ngx_str_t *labels);
u_char *ngx_http_idem_labels_encode(u_char *p, const ngx_str_t *labels);

/* returns a label, empty if there is none */
void ngx_http_idem_label(const ngx_str_t *details,
    ngx_http_idem_label_e kind, ngx_str_t *value);

/* advances to the details behind the labels */
void ngx_http_idem_labels_skip(ngx_str_t *details);


#endif /* _NGX_HTTP_IDEM_RECORD_H_INCLUDED_ */
