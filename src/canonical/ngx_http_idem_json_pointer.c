
/*
 * The tokens of a JSON Pointer, compared where they stand: they are few and
 * short, and nothing is made of them beforehand.
 */


#include "canonical/ngx_http_idem_json_pointer.h"


ngx_uint_t
ngx_http_idem_json_pointer_tokens(const ngx_str_t *pointer)
{
    size_t      i;
    ngx_uint_t  n;

    n = 0;

    for (i = 0; i < pointer->len; i++) {
        n += (pointer->data[i] == '/');
    }

    return n;
}


ngx_uint_t
ngx_http_idem_json_pointer_is(const ngx_str_t *pointer, ngx_uint_t n,
    const u_char *p, size_t len)
{
    u_char         ch;
    const u_char  *q, *last;

    q = pointer->data;
    last = pointer->data + pointer->len;

    for ( /* void */ ; q < last; q++) {
        if (*q == '/' && --n == 0) {
            break;
        }
    }

    if (q == last) {
        return 0;
    }

    for (q++; q < last && *q != '/'; q++) {
        ch = *q;

        if (ch == '~' && q + 1 < last) {
            ch = (*++q == '1') ? '/' : '~';
        }

        if (len == 0 || *p != ch) {
            return 0;
        }

        p++;
        len--;
    }

    return len == 0;
}
