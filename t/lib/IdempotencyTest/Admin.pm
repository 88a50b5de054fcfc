# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

package IdempotencyTest::Admin;

# What tests of idempotency_admin share: the locations, and a request that makes
# a record.
#
# admin_config($store, @more) covers / by that store, with the lines of @more.
# Answers say which record is theirs and what became of it.  /ops/ has all of
# idempotency_admin, and /look/ is for reading.

use strict;
use warnings;

require Exporter;

our @ISA = 'Exporter';
our @EXPORT = qw(admin_config post);


sub admin_config
{
    my ($store, @more) = @_;

    return <<"_EOC_";
    location / {
        idempotency           $store;
        idempotency_scope     api;
        idempotency_identity  off;
        add_header            X-Record \$idempotency_record always;
        add_header            X-Status \$idempotency_status always;
        proxy_pass            http://127.0.0.1:\$TEST_NGINX_APP_PORT;
        @more
    }

    location /ops/ {
        idempotency_admin;
    }

    location /look/ {
        idempotency_admin  read;
    }
_EOC_
}


sub post
{
    my ($uri, $key, @o) = @_;

    return IdempotencyTest::http_post($uri, 'body',
                                      { 'Idempotency-Key' => $key }, @o);
}

1;
