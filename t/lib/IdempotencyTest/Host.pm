# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

package IdempotencyTest::Host;

# Another nginx host: the configuration of the block on another port, in a
# place of its own.  It ends with the block.

use strict;
use warnings;

use File::Path ();
use POSIX ();

use IdempotencyTest::Process qw(is_alive is_listening wait_for);

my @All;


# root: of the block's nginx; port: where that listens; to: where this one is
# to listen

sub start
{
    my ($class, %o) = @_;

    my $self = bless { port => $o{to}, dir => "$o{root}/html/host$o{to}" },
                     $class;

    File::Path::make_path("$self->{dir}/logs");

    open my $in, '<', "$o{root}/conf/nginx.conf" or die $!;
    my $conf = do { local $/; <$in> };

    $conf =~ s/\Q$o{root}\E/$self->{dir}/g;
    $conf =~ s/^daemon off;/daemon on;/m;        # so it is under valgrind
    $conf =~ s/127\.0\.0\.1:\Q$o{port}\E\b/127.0.0.1:$o{to}/g;

    open my $out, '>', "$self->{dir}/nginx.conf" or die $!;
    print $out $conf;
    close $out;

    system($ENV{TEST_NGINX_BINARY}, '-p', "$self->{dir}/",
           '-c', "$self->{dir}/nginx.conf",
           '-e', "$self->{dir}/logs/error.log") == 0
        or die "the other nginx does not start\n";

    push @All, $self;

    wait_for(sub { -s "$self->{dir}/logs/nginx.pid"
                   && is_listening($o{to}) }, 10)
        or die "the other nginx does not start\n";

    open my $pid, '<', "$self->{dir}/logs/nginx.pid" or die $!;
    $self->{pid} = <$pid> + 0;

    return $self;
}


sub error_log
{
    my ($self) = @_;

    open my $in, '<', "$self->{dir}/logs/error.log" or return '';
    local $/;
    return <$in> // '';
}


# true if it left when told to, and had no alert to log

sub stop
{
    my ($self) = @_;

    @All = grep { $_ != $self } @All;
    return 1 if !$self->{pid};

    kill QUIT => $self->{pid};
    my $left = wait_for(sub { !is_alive($self->{pid}) }, 30);
    kill KILL => $self->{pid} if !$left;
    $self->{pid} = 0;

    return $left && $self->error_log !~ /\[(?:alert|crit|emerg)\]/;
}

sub stop_all { $_->stop for @All }

1;
