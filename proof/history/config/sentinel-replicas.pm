# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# The same, and a commit waits for all replicas.

package config::sentinel_replicas;

use strict;
use warnings;

BEGIN { require "config/sentinel.pm"; our @ISA = 'config::sentinel' }


sub replicas { 2 }


return __PACKAGE__;
