# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# One Redis with an append-only file.

package config::redis;

use strict;
use warnings;
use parent 'RedisStore';


return __PACKAGE__;
