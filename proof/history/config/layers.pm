# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# One Redis, with a cache and a breaker around it.

package config::layers;

use strict;
use warnings;
use parent 'RedisStore';


sub layers { "breaker fails=5 reset=1s;\n        cache hot:16m ttl=10s;" }

# a breaker that is open for a second, and then one probe

sub found_within { 2 }
sub has_cache { 1 }


return __PACKAGE__;
