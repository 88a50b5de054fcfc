# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# One Redis, a breaker, and a ledger in each nginx for when it is away.

package config::fallback;

use strict;
use warnings;
use parent 'RedisStore';


sub layers { 'breaker fails=5 reset=1s;' }
sub more { "    idempotency_store ledger memory { zone ledger:16m; }\n" }
sub which { 'shared fallback=ledger' }

sub has_fallback { 1 }
sub found_within { 2 }


return __PACKAGE__;
