# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# One PostgreSQL, as it is by default: commits are durable, locks soon.

package config::postgres;

use strict;
use warnings;
use parent 'PostgresStore';


return __PACKAGE__;
