# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# What a configuration is: the servers of a store, what nginx is told of them,
# what may go wrong with them, and what is in them at the end.  Each is a file
# in config/, a package that has this one, or another, for its base; its last
# line is the name of the package.  The defaults are those of the embedded
# store, where there is nothing to start, nothing to cut and nothing to lose.

package Store;

use strict;
use warnings;


# new(network => ..., dir => ...)

sub new { my ($class, %o) = @_; return bless { %o }, $class }

sub start { }
sub stop { }

# nginx.conf: the blocks of the stores, as that host has them; the argument of
# "idempotency"; the names of stores whose outboxes have to be empty at the end

sub stores { my ($self, $host) = @_; return '' }
sub which { 'on' }
sub outboxes { () }

# the module of PostgreSQL is loaded, too

sub wants_postgres { 0 }

# hosts that may be asked for an operation: all, if the store is one for all

sub hosts_of { my ($self, $i, @hosts) = @_; return $hosts[$i % @hosts] }

# what may go wrong: [ weight, name, sub { my ($schedule, @dice) = @_; ... } ]
# The sub returns steps, see Schedule.pm; four dice are in [0, 1)

sub faults { () }

# whether hosts may be cut off from it

sub can_cut { 0 }

# whatever was done to it: it works again

sub heal { }

# the parts that may be away by themselves, and which of them has a record;
# what was moved between them later on is in the schedule's account

sub shard { my ($self, $record) = @_; return 0 }

# records in progress: [ name, ms to live, grace, hold ]; and how many, by the
# figures of the hosts, where there is nobody else to ask

sub locks { my ($self, $hosts) = @_; return () }
sub locks_of { my ($self, $hosts, $name) = @_; return 0 }

# exceptions that this configuration has: of the embedded store, that it is
# lost with its host; of a fallback; of a failover.  And how long after a part
# is back, by its own word, nginx may take to find it

sub lost_with_host { 0 }
sub has_fallback { 0 }
sub has_cache { 0 }
sub acknowledged { 0 }
sub found_within { 1 }

# whether a ledger is one for all hosts; whether a failover, or a crash, leaves
# the lock of that operation, which it had for so many seconds by then

sub ledger_is_shared { 0 }
sub keeps_lock { my ($self, $op, $age) = @_; return 0 }

# whether a failover, or a crash, may lose a response that was replayed

sub loses_responses { 1 }


1;
