# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# The embedded store: a host for each operation, since each has its own.

package config::memory;

use strict;
use warnings;
use parent 'Store';


sub lost_with_host { 1 }

sub locks_of
{
    my ($self, $hosts, $name) = @_;
    my $figures = $hosts->figures($name, 'default');

    return $figures ? $figures->{records}{in_progress} : -1;
}


return __PACKAGE__;
