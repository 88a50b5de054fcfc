# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# The same cluster, and a commit waits for its master's replica.

package config::cluster_replicas;

use strict;
use warnings;

BEGIN { require "config/cluster.pm"; our @ISA = 'config::cluster' }


sub replicas { 1 }


return __PACKAGE__;
