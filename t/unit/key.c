
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/* sources: src/canonical/ngx_http_idem_key.c ; libs: */

/*
 * The syntax of a key: vectors written from the grammar of RFC 8941, each
 * byte value in each place, lengths, and random values held against the
 * grammar as a regular expression.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include <regex.h>

#include "canonical/ngx_http_idem_key.h"
#include "unit.h"


#define TOKEN   NGX_HTTP_IDEM_KEY_TOKEN
#define UUID    NGX_HTTP_IDEM_KEY_UUID
#define UUID4   NGX_HTTP_IDEM_KEY_UUID4
#define STRING  NGX_HTTP_IDEM_KEY_STRING

#define RANDOM_VALUES  200000

#define S(s)  s, sizeof(s) - 1


/* "key" is NULL for a value that has to be declined */

typedef struct {
    const char  *raw;
    size_t       len;
    const char  *key;
    const char  *name;
} vector_t;


/* of kind string: what is an Item, and what is not */

static vector_t  items[] = {

    { S("\"abc\""), "abc", "a string" },
    { S("\" \""), " ", "a space" },
    { S("\"  a  \""), "  a  ", "spaces within the quotes count" },
    { S("\"a\\\"b\""), "a\"b", "escaped quote" },
    { S("\"a\\\\b\""), "a\\b", "escaped backslash" },
    { S("\"\\\\\\\"\""), "\\\"", "escapes in a row" },
    { S("\"\\\"\""), "\"", "nothing but an escaped quote" },
    { S("\"\\\\\""), "\\", "nothing but an escaped backslash" },
    { S("\"a,b\""), "a,b", "comma in a string" },
    { S("\"a;b=c\""), "a;b=c", "semicolon in a string" },
    { S("\"~!@#$%^&*()\""), "~!@#$%^&*()", "punctuation" },
    { S("   \"abc\"   "), "abc", "spaces around" },
    { S("\t\"abc\"\t "), "abc", "tabs around" },
    { S("\"abc\";a"), "abc", "parameter without a value" },
    { S("\"abc\";*"), "abc", "parameter named *" },
    { S("\"abc\";*a0_-.*=1"), "abc", "all characters of a parameter's name" },
    { S("\"abc\";a;b;c"), "abc", "parameters" },
    { S("\"abc\";a=1;a=2"), "abc", "parameter twice" },
    { S("\"abc\";   a=1"), "abc", "spaces before a parameter" },
    { S("\"abc\";a=1 "), "abc", "space at the end" },
    { S("\"abc\";a=0"), "abc", "integer 0" },
    { S("\"abc\";a=-0"), "abc", "integer -0" },
    { S("\"abc\";a=007"), "abc", "integer with zeros before it" },
    { S("\"abc\";a=123456789012345"), "abc", "integer of 15 digits" },
    { S("\"abc\";a=-123456789012345"), "abc", "negative of 15 digits" },
    { S("\"abc\";a=1.5"), "abc", "decimal" },
    { S("\"abc\";a=-1.123"), "abc", "decimal of 3 places" },
    { S("\"abc\";a=123456789012.123"), "abc", "decimal of 12 and 3 digits" },
    { S("\"abc\";a=\"x;y\\\"\""), "abc", "string as a parameter" },
    { S("\"abc\";a=\"\""), "abc", "empty string as a parameter" },
    { S("\"abc\";a=tok"), "abc", "token as a parameter" },
    { S("\"abc\";a=*"), "abc", "token *" },
    { S("\"abc\";a=T!#$%&'*+-.^_`|~:/9"), "abc",
      "all characters of a token" },
    { S("\"abc\";a=::"), "abc", "no bytes" },
    { S("\"abc\";a=:aGVsbG8=:"), "abc", "bytes" },
    { S("\"abc\";a=:aGVsbG8:"), "abc", "bytes without padding" },
    { S("\"abc\";a=:+/AZaz09:"), "abc", "alphabet of bytes" },
    { S("\"abc\";a=?0"), "abc", "false" },
    { S("\"abc\";a=?1;b"), "abc", "true, and one more" },

    { S("\""), NULL, "a quote alone" },
    { S("\"\""), NULL, "empty string" },
    { S("\"abc"), NULL, "not closed" },
    { S("\"abc\\\""), NULL, "closing quote escaped" },
    { S("\"abc\\"), NULL, "ends in a backslash" },
    { S("\"a\\bc\""), NULL, "escape of another character" },
    { S("\"a\\ c\""), NULL, "escaped space" },
    { S("\"abc\"d"), NULL, "something behind" },
    { S("\"abc\"\"d\""), NULL, "two strings" },
    { S("\"abc\" \"d\""), NULL, "two strings with a space" },
    { S("\"abc\", \"d\""), NULL, "a list" },
    { S("\"abc\","), NULL, "trailing comma" },
    { S("\"abc\" ;a"), NULL, "space before a semicolon" },
    { S("\"abc\";"), NULL, "semicolon and nothing" },
    { S("\"abc\";;a"), NULL, "two semicolons" },
    { S("\"abc\"; "), NULL, "semicolon and a space" },
    { S("\"abc\";\ta"), NULL, "tab before a parameter" },
    { S("\"abc\";A=1"), NULL, "capital in a parameter's name" },
    { S("\"abc\";aB"), NULL, "capital later in a parameter's name" },
    { S("\"abc\";1a"), NULL, "parameter's name begins with a digit" },
    { S("\"abc\";-a"), NULL, "parameter's name begins with a dash" },
    { S("\"abc\";a="), NULL, "no value" },
    { S("\"abc\";a= 1"), NULL, "space before a value" },
    { S("\"abc\";a =1"), NULL, "space before an equals sign" },
    { S("\"abc\";a=1 ;b"), NULL, "space behind a value" },
    { S("\"abc\";a=1234567890123456"), NULL, "integer of 16 digits" },
    { S("\"abc\";a=-1234567890123456"), NULL, "negative of 16 digits" },
    { S("\"abc\";a=-"), NULL, "a sign alone" },
    { S("\"abc\";a=--1"), NULL, "two signs" },
    { S("\"abc\";a=+1"), NULL, "plus sign" },
    { S("\"abc\";a=-a"), NULL, "sign and a letter" },
    { S("\"abc\";a=1."), NULL, "decimal without places" },
    { S("\"abc\";a=.5"), NULL, "decimal without an integer" },
    { S("\"abc\";a=1.1234"), NULL, "decimal of 4 places" },
    { S("\"abc\";a=1234567890123.1"), NULL, "decimal of 13 digits" },
    { S("\"abc\";a=1.5.2"), NULL, "two dots" },
    { S("\"abc\";a=1e5"), NULL, "exponent" },
    { S("\"abc\";a=\"x"), NULL, "string parameter not closed" },
    { S("\"abc\";a=\"\\x\""), NULL, "bad escape in a string parameter" },
    { S("\"abc\";a=_x"), NULL, "token begins with an underscore" },
    { S("\"abc\";a=x@y"), NULL, "at sign in a token" },
    { S("\"abc\";a=(1)"), NULL, "inner list as a parameter" },
    { S("\"abc\";a=:"), NULL, "bytes of one colon" },
    { S("\"abc\";a=:abc"), NULL, "bytes not closed" },
    { S("\"abc\";a=:ab-c:"), NULL, "bytes with a dash" },
    { S("\"abc\";a=:ab c:"), NULL, "bytes with a space" },
    { S("\"abc\";a=?"), NULL, "boolean without a value" },
    { S("\"abc\";a=?2"), NULL, "boolean 2" },
    { S("\"abc\";a=?t"), NULL, "boolean t" },
    { S("\"abc\";a=?01"), NULL, "boolean 01" },
    { S("\"a\tc\""), NULL, "tab in a string" },
    { S("\"a\0c\""), NULL, "NUL in a string" },
    { S("\"abc\"\0"), NULL, "NUL behind a string" },
    { S("\"a\x7f\""), NULL, "DEL in a string" },
    { S("\"a\xc3\xbc\""), NULL, "UTF-8 in a string" },

    { S(""), NULL, "nothing" },
    { S(" \t "), NULL, "white space" },
    { S("abc"), "abc", "bare" },
    { S(" abc\t"), "abc", "bare, white space around" },
    { S("a;b=c"), "a;b=c", "bare: no parameters there" },
    { S(":aGk=:"), ":aGk=:", "bare: no bytes there" },
    { S("a\"b"), NULL, "bare with a quote" },
    { S("abc\""), NULL, "bare with a quote at the end" },
    { S("a b"), NULL, "bare with a space" },
    { S("a\tb"), NULL, "bare with a tab" },
    { S("a,b"), NULL, "bare with a comma" },
    { S("a\\b"), NULL, "bare with a backslash" },
    { S("'abc'"), "'abc'", "single quotes are no quotes" }
};


static vector_t  uuids[] = {
    { S("f81d4fae-7dec-11d0-a765-00a0c91e6bf6"),
      "f81d4fae-7dec-11d0-a765-00a0c91e6bf6", "UUID" },
    { S("F81D4FAE-7DEC-11D0-A765-00A0C91E6BF6"),
      "F81D4FAE-7DEC-11D0-A765-00A0C91E6BF6", "UUID in capitals, as sent" },
    { S("\"f81d4fae-7dec-11d0-a765-00a0c91e6bf6\";v=1"),
      "f81d4fae-7dec-11d0-a765-00a0c91e6bf6", "quoted UUID" },
    { S("00000000-0000-0000-0000-000000000000"),
      "00000000-0000-0000-0000-000000000000", "nil UUID" },
    { S("f81d4fae7dec11d0a76500a0c91e6bf6"), NULL, "UUID without dashes" },
    { S("{f81d4fae-7dec-11d0-a765-00a0c91e6bf6}"), NULL, "UUID in braces" },
    { S("urn:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6"), NULL, "URN" },
    { S("f81d4fae-7dec-11d0-a765-00a0c91e6bf"), NULL, "UUID of 35" },
    { S("f81d4fae-7dec-11d0-a765-00a0c91e6bf60"), NULL, "UUID of 37" },
    { S("f81d4fa-e7dec-11d0-a765-00a0c91e6bf6"), NULL, "dash misplaced" }
};


static const char  *kinds[] = { "token", "uuid", "uuid4", "string" };

static const u_char  uuid4[] = "9b2e6c1a-53D7-4f08-Bc91-0123456789aF";


static ngx_http_idem_key_format_t
format_of(ngx_http_idem_key_kind_e kind, size_t min, size_t max)
{
    ngx_http_idem_key_format_t  format;

    memset(&format, 0, sizeof(format));

    format.kind = kind;
    format.min = min;
    format.max = max;

    return format;
}


/*
 * Parses a copy of the value, and compares with the key expected, or with
 * NULL for none.  "reason" is for the caller to look at.
 */

static ngx_uint_t
parses_as(const ngx_http_idem_key_format_t *format, ngx_uint_t text,
    const void *value, size_t len, const void *expected, size_t expected_len,
    const char **reason)
{
    u_char      *buf;
    ngx_int_t    rc;
    ngx_str_t    raw, key;
    ngx_uint_t   passed;

    raw.len = len;
    raw.data = exact(value, len);
    buf = exact(NULL, len);

    *reason = NULL;

    rc = ngx_http_idem_key_parse(format, &raw, text, buf, &key, reason);

    if (expected == NULL) {
        passed = (rc == NGX_DECLINED && *reason && **reason);

    } else {
        passed = (rc == NGX_OK
                  && unit_equal(key.data, key.len, expected, expected_len)
                  && ((key.data >= raw.data
                       && key.data + key.len <= raw.data + len)
                      || key.data == buf));
    }

    if (memcmp(raw.data, value, len) != 0) {
        passed = 0;
    }

    if (!passed) {
        unit_dump("value: ", value, len);
        printf("# rc: %d, kind: %s\n", (int) rc, kinds[format->kind]);
    }

    exact_free(raw.data, len);
    exact_free(buf, len);

    return passed;
}


/* a field value */

static ngx_uint_t
parses(const ngx_http_idem_key_format_t *format, const void *value,
    size_t len, const void *expected, size_t expected_len,
    const char **reason)
{
    return parses_as(format, 0, value, len, expected, expected_len, reason);
}


static void
test_vectors(vector_t *v, size_t n, ngx_http_idem_key_kind_e kind)
{
    size_t                       i;
    const char                  *reason;
    ngx_http_idem_key_format_t   format;

    format = format_of(kind, 1, 255);

    for (i = 0; i < n; i++) {
        ok(parses(&format, v[i].raw, v[i].len, v[i].key,
                  v[i].key ? strlen(v[i].key) : 0, &reason),
           "%s: %s", v[i].key ? "accepted" : "declined", v[i].name);
    }
}


static void
test_uuid4(void)
{
    size_t                       i;
    ngx_uint_t                   failed;
    const char                  *reason;
    ngx_http_idem_key_format_t   format;

    failed = 0;
    format = format_of(UUID4, 1, 255);

    for (i = 0; i < sizeof(uuids) / sizeof(uuids[0]); i++) {
        failed += !parses(&format, uuids[i].raw, uuids[i].len, NULL, 0,
                          &reason);
    }

    is(failed, 0, "no UUID above is of version 4");

    ok(parses(&format, uuid4, 36, uuid4, 36, &reason), "version 4 UUID");

    parses(&format, "f81d4fae-7dec-11d0-a765-00a0c91e6bf6", 36, NULL, 0,
           &reason);
    ok(reason && strcmp(reason, "is not a version 4 UUID") == 0,
       "the reason names the version");
}


static ngx_uint_t
token_char(ngx_uint_t c)
{
    return c && strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                       "0123456789_.-", (int) c) != NULL;
}


static ngx_uint_t
hex_char(ngx_uint_t c)
{
    return c && strchr("0123456789abcdefABCDEF", (int) c) != NULL;
}


/* each byte: alone, alone in quotes, and in the midst of a key */

static void
test_every_byte(ngx_http_idem_key_kind_e kind)
{
    u_char                       value[5];
    ngx_uint_t                   c, bare, quoted, failed;
    const char                  *reason;
    ngx_http_idem_key_format_t   format;

    failed = 0;
    format = format_of(kind, 1, 255);

    for (c = 0; c < 256; c++) {

        bare = 0;
        quoted = 0;

        if (kind == TOKEN) {
            bare = token_char(c);
            quoted = bare;

        } else if (kind == STRING) {
            quoted = (c >= 0x20 && c <= 0x7e && c != '"' && c != '\\');
            bare = quoted && c != ' ' && c != ',';
        }

        value[0] = c;
        failed += !parses(&format, value, 1, bare ? value : NULL, 1, &reason);

        value[0] = 'a';
        value[1] = c;
        value[2] = 'a';
        failed += !parses(&format, value, 3, bare ? value : NULL, 3, &reason);

        value[0] = '"';
        value[2] = '"';
        failed += !parses(&format, value, 3, quoted ? value + 1 : NULL, 1,
                          &reason);

        value[1] = 'a';
        value[2] = c;
        value[3] = 'a';
        value[4] = '"';
        failed += !parses(&format, value, 5, quoted ? value + 1 : NULL, 3,
                          &reason);
    }

    ok(failed == 0, "each byte in a %s, bare and quoted", kinds[kind]);
}


/* each byte in each place of a UUID, bare and quoted */

static void
test_every_byte_of_uuid(ngx_http_idem_key_kind_e kind)
{
    u_char                       value[38];
    ngx_uint_t                   c, i, valid, failed;
    const char                  *reason;
    ngx_http_idem_key_format_t   format;

    failed = 0;
    format = format_of(kind, 1, 255);

    for (i = 0; i < 36; i++) {
        for (c = 0; c < 256; c++) {

            value[0] = '"';
            memcpy(value + 1, uuid4, 36);
            value[37] = '"';
            value[1 + i] = c;

            valid = (i == 8 || i == 13 || i == 18 || i == 23) ? c == '-'
                                                              : hex_char(c);

            if (kind == UUID4 && i == 14) {
                valid = (c == '4');
            }

            if (kind == UUID4 && i == 19) {
                valid = c && strchr("89abAB", (int) c) != NULL;
            }

            failed += !parses(&format, value + 1, 36,
                              valid ? value + 1 : NULL, 36, &reason);
            failed += !parses(&format, value, 38,
                              valid ? value + 1 : NULL, 36, &reason);
        }
    }

    ok(failed == 0, "each byte in each place of a %s", kinds[kind]);
}


static void
test_lengths(void)
{
    u_char                       value[600], key[300];
    size_t                       n, i;
    ngx_uint_t                   failed, valid;
    const char                  *reason;
    ngx_http_idem_key_format_t   format;

    memset(key, 'k', sizeof(key));

    failed = 0;
    format = format_of(TOKEN, 1, 255);

    for (n = 0; n <= 257; n++) {
        valid = (n >= 1 && n <= 255);

        failed += !parses(&format, key, n, valid ? key : NULL, n, &reason);

        value[0] = '"';
        memcpy(value + 1, key, n);
        value[n + 1] = '"';

        failed += !parses(&format, value, n + 2, valid ? key : NULL, n,
                          &reason);
    }

    is(failed, 0, "0 to 257 characters, bare and quoted");

    failed = 0;
    format = format_of(STRING, 3, 255);
    memset(key, '"', sizeof(key));

    for (n = 0; n <= 257; n++) {
        valid = (n >= 3 && n <= 255);

        value[0] = '"';

        for (i = 0; i < n; i++) {
            value[1 + 2 * i] = '\\';
            value[2 + 2 * i] = '"';
        }

        value[1 + 2 * n] = '"';

        failed += !parses(&format, value, 2 * n + 2, valid ? key : NULL, n,
                          &reason);
    }

    is(failed, 0, "an escape counts as the one character it stands for");

    format = format_of(TOKEN, 0, 255);

    parses(&format, "\"\"", 2, NULL, 0, &reason);
    ok(reason && strcmp(reason, "is empty") == 0, "empty, even with min=0");

    parses(&format, " ", 1, NULL, 0, &reason);
    ok(reason && strcmp(reason, "is empty") == 0, "white space is empty");

    format = format_of(TOKEN, 3, 5);

    ok(parses(&format, "ab", 2, NULL, 0, &reason)
       && strcmp(reason, "is too short") == 0, "below min");
    ok(parses(&format, "abc", 3, "abc", 3, &reason), "min");
    ok(parses(&format, " \"abcde\";x=longer ", 18, "abcde", 5, &reason),
       "max, which does not bound parameters or white space");
    ok(parses(&format, "abcdef", 6, NULL, 0, &reason)
       && strcmp(reason, "is too long") == 0, "above max");

    format.quoted_required = 1;

    ok(parses(&format, "abc", 3, NULL, 0, &reason)
       && strcmp(reason, "is not quoted") == 0, "bare, quotes required");
    ok(parses(&format, "\"abc\"", 5, "abc", 3, &reason),
       "quoted, quotes required");
}


/* a value of pieces that are likely to be almost an Item */

static size_t
random_value(char *value)
{
    size_t              n, i, len;

    static const char  *pieces[] = {
        "\"", "\"", "\"", "\\\"", "\\\\", "\\", ";", ";", "; ", "=", "=",
        "a", "b-c", "A", "*", "_", ".", "1", "-1", "123456789012",
        "123456789012345", "6", "1.5", ":", "YQ==", "?0", "?1", "?", ",",
        " ", "\t", "~", "]", "[", "^", "\x7f", "\x80", "(", ";a=", ";b"
    };

    len = 0;

    if (unit_below(4)) {
        memcpy(value, "\"k\"", 3);
        len = 3;
    }

    n = unit_below(9);

    for (i = 0; i < n; i++) {
        len += sprintf(value + len, "%s",
                       pieces[unit_below(sizeof(pieces) / sizeof(char *))]);
    }

    value[len] = '\0';

    return len;
}


static void
test_against_regex(void)
{
    int                          n;
    char                         value[256];
    size_t                       len, accepted;
    u_char                       buf[256], *p;
    regex_t                      item, bare;
    ngx_int_t                    rc, expected;
    ngx_str_t                    raw, key;
    ngx_uint_t                   failed;
    const char                  *reason;
    ngx_http_idem_key_format_t   format;

#define RE_STRING  "\"([] !#-[^-~]|\\\\[\"\\])*\""
#define RE_NUMBER  "-?([0-9]{1,15}|[0-9]{1,12}\\.[0-9]{1,3})"
#define RE_TOKEN   "[A-Za-z*][A-Za-z0-9!#$%&'*+.^_`|~:/-]*"
#define RE_VALUE   "(" RE_STRING "|" RE_NUMBER "|" RE_TOKEN                   \
                   "|:[A-Za-z0-9+/=]*:|\\?[01])"
#define RE_PARAM   "; *[a-z*][a-z0-9_.*-]*(=" RE_VALUE ")?"

    if (regcomp(&item, "^[ \t]*" RE_STRING "(" RE_PARAM ")*[ \t]*$",
                REG_EXTENDED|REG_NOSUB)
        || regcomp(&bare, "^[ \t]*[]!#-+./0-9:-[^-~-]+[ \t]*$",
                   REG_EXTENDED|REG_NOSUB))
    {
        abort();
    }

    failed = 0;
    accepted = 0;
    format = format_of(STRING, 1, 255);

    for (n = 0; n < RANDOM_VALUES; n++) {
        len = random_value(value);

        expected = (regexec(&item, value, 0, NULL, 0) == 0
                    || regexec(&bare, value, 0, NULL, 0) == 0)
                   ? NGX_OK : NGX_DECLINED;

        /* the grammar has an empty string; as a key it is refused */

        p = (u_char *) value + strspn(value, " \t");

        if (p[0] == '"' && p[1] == '"') {
            expected = NGX_DECLINED;
        }

        raw.len = len;
        raw.data = exact(value, len);

        rc = ngx_http_idem_key_parse(&format, &raw, 0, buf, &key, &reason);

        if (rc != expected) {
            if (failed++ == 0) {
                unit_dump("differs: ", raw.data, len);
            }
        }

        accepted += (rc == NGX_OK);

        exact_free(raw.data, len);
    }

    regfree(&item);
    regfree(&bare);

    ok(failed == 0, "%d random values as the grammar says, %d accepted",
       RANDOM_VALUES, (int) accepted);
    ok(accepted > RANDOM_VALUES / 50, "enough of them were Items");
}


/* printable keys: quoting and escaping is undone, whatever the key */

static void
test_same_key(void)
{
    int                          n;
    u_char                       key[40], value[90], *p;
    size_t                       i, len;
    ngx_uint_t                   failed, plain;
    const char                  *reason;
    ngx_http_idem_key_format_t   format;

    failed = 0;
    format = format_of(STRING, 1, 255);

    for (n = 0; n < 20000; n++) {
        len = 1 + unit_below(sizeof(key));
        plain = 1;
        p = value;
        *p++ = '"';

        for (i = 0; i < len; i++) {
            key[i] = unit_below(4) ? 0x20 + unit_below(0x5f)
                                   : (u_char) "\"\\,;"[unit_below(4)];

            if (strchr(" ,", key[i])) {
                plain = 0;
            }

            if (strchr("\"\\", key[i])) {
                plain = 0;
                *p++ = '\\';
            }

            *p++ = key[i];
        }

        *p++ = '"';

        failed += !parses(&format, value, p - value, key, len, &reason);

        if (plain) {
            failed += !parses(&format, key, len, key, len, &reason);
        }

        /* a JSON string is the key, in quotes of its own or without */

        failed += !parses_as(&format, 1, value, p - value, key, len,
                             &reason);

        if (key[0] != '"') {
            failed += !parses_as(&format, 1, key, len, key, len, &reason);
        }
    }

    is(failed, 0, "a key is the same, quoted or bare, escaped or not");
}


/* JSON strings: characters, not syntax, decide */

static void
test_text(void)
{
    u_char                       value[3];
    size_t                       i;
    const char                  *reason, *expected;
    ngx_uint_t                   c, failed;
    ngx_http_idem_key_format_t   format, token;

    static vector_t  texts[] = {
        { S("a b"), "a b", "a space" },
        { S(" a "), " a ", "spaces around count" },
        { S("  "), "  ", "nothing but spaces" },
        { S("a\"b\\c,d"), "a\"b\\c,d", "what a field would quote" },
        { S("\"abc"), "\"abc", "a quote that is not closed" },
        { S("\"a\"b\""), "\"a\"b\"", "quotes that are no Item" },
        { S("\"abc\" "), "\"abc\" ", "something behind an Item" },
        { S("\"abc\""), "abc", "an Item" },
        { S("\"abc\";a=1"), "abc", "an Item with a parameter" },
        { S("\"\""), NULL, "an empty Item" },
        { S(""), NULL, "nothing" },
        { S("a\tb"), NULL, "a tab" },
        { S("caf\xc3\xa9"), NULL, "an accent" }
    };

    format = format_of(STRING, 1, 255);
    token = format_of(TOKEN, 1, 255);

    for (i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        expected = texts[i].key;

        ok(parses_as(&format, 1, texts[i].raw, texts[i].len, expected,
                     expected ? strlen(expected) : 0, &reason),
           "JSON string: %s", texts[i].name);

        if (expected && strcmp(expected, "abc") != 0) {
            ok(parses_as(&token, 1, texts[i].raw, texts[i].len, NULL, 0,
                         &reason),
               "JSON string, no token: %s", texts[i].name);
        }
    }

    failed = 0;

    for (c = 0; c < 256; c++) {
        value[0] = 'a';
        value[1] = (u_char) c;
        value[2] = 'b';

        failed += !parses_as(&format, 1, value, 3,
                             (c >= 0x20 && c <= 0x7e) ? value : NULL, 3,
                             &reason);
    }

    is(failed, 0, "JSON string: every byte");

    format.quoted_required = 1;

    ok(parses_as(&format, 1, S("a b"), S("a b"), &reason),
       "JSON string: has its quotes");
    ok(parses_as(&format, 0, S("abc"), NULL, 0, &reason),
       "a bare field has none");
}


int
main(void)
{
    plan((int) (sizeof(items) / sizeof(items[0])
                + sizeof(uuids) / sizeof(uuids[0])
                + 3 + 4 + 2 + 10 + 1 + 23 + 2));

    unit_seed();

    test_vectors(items, sizeof(items) / sizeof(items[0]), STRING);
    test_vectors(uuids, sizeof(uuids) / sizeof(uuids[0]), UUID);

    test_uuid4();

    test_every_byte(TOKEN);
    test_every_byte(UUID);
    test_every_byte(UUID4);
    test_every_byte(STRING);

    test_every_byte_of_uuid(UUID);
    test_every_byte_of_uuid(UUID4);

    test_lengths();
    test_same_key();
    test_text();
    test_against_regex();

    return done();
}
