# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

package IdempotencyTest::Tls;

# Certificates of a test's own, in a directory that goes with it.
#
#   my $tls = IdempotencyTest::Tls->new('ca', 'other');    # two authorities
#   $tls->certificate('server', 'IP:127.0.0.1');           # by the first
#   $tls->certificate('server', 'IP:127.0.0.1', 'other');  # by the second
#
# Each is a file <name>.pem with a <name>.key in {dir}.  And clients:
#
#   http_post($uri, $body, $headers, socket => $tls->dial($port));
#   ... $tls->dial($port, 'alice', '-servername', 'a.test')   # with a certificate

use strict;
use warnings;

use File::Path ();
use File::Temp ();
use IO::Handle;
use POSIX ();
use Socket qw(AF_UNIX SOCK_STREAM);


sub new
{
    my ($class, @authorities) = @_;

    my $self = bless {
        dir => File::Temp::tempdir('idempotency-tls-XXXXXX', DIR => '/tmp'),
        first => $authorities[0],
        owner => $$,
    }, $class;

    chmod 0755, $self->{dir};

    for my $name (@authorities) {
        $self->openssl('req -x509', key($self, $name), "-out $self->{dir}/$name.pem",
                       "-days 2 -subj /CN=$name");
    }

    return $self;
}


sub openssl
{
    my ($self, @arguments) = @_;

    my $said = `openssl @arguments 2>&1`;
    die "openssl @arguments: $said" if $?;
}

# curves: a key of RSA takes a tenth of a second

sub key
{
    my ($self, $name) = @_;

    return '-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes '
           . "-keyout $self->{dir}/$name.key";
}


# What was there by this name is replaced.  The subject is the name.

sub certificate
{
    my ($self, $name, $san, $by) = @_;

    my $file = "$self->{dir}/$name";
    my $ca = "$self->{dir}/" . ($by || $self->{first});

    open my $ext, '>', "$file.ext" or die "$file.ext: $!\n";
    print $ext "subjectAltName=$san\n";
    close $ext;

    $self->openssl('req', $self->key($name), "-out $file.csr -subj /CN=$name");
    $self->openssl("x509 -req -in $file.csr -CA $ca.pem -CAkey $ca.key",
                   "-CAcreateserial -out $file.pem -extfile $file.ext -days 2");
    chmod 0644, "$file.key";

    return "$file.pem";
}


# options of a Redis that listens there, with that certificate

sub redis
{
    my ($self, $port, $name, %o) = @_;

    return ('--tls-port', $port,
            '--tls-cert-file', "$self->{dir}/$name.pem",
            '--tls-key-file', "$self->{dir}/$name.key",
            '--tls-ca-cert-file', "$self->{dir}/$self->{first}.pem",
            '--tls-auth-clients', $o{clients} || 'no');
}


# A socket whose other end is "openssl s_client": perl has no TLS of its own.
# It closes the connection when this end is closed.

sub dial
{
    my ($self, $port, $name, @options) = @_;

    push @options, '-cert', "$self->{dir}/$name.pem", '-key', "$self->{dir}/$name.key"
        if $name;

    socketpair my $mine, my $its, AF_UNIX, SOCK_STREAM, 0 or die "socketpair: $!\n";

    my $pid = fork;
    die "fork: $!\n" if !defined $pid;

    if ($pid == 0) {
        close $mine;
        open STDIN, '<&', $its;
        open STDOUT, '>&', $its;
        open STDERR, '>', "$self->{dir}/s_client.log";
        exec 'setpriv', '--pdeathsig', 'KILL', 'openssl', 's_client', '-quiet',
             '-no_ign_eof', '-connect', "127.0.0.1:$port", @options
            or POSIX::_exit(127);
    }

    close $its;
    push @{ $self->{pids} }, $pid;
    $mine->autoflush(1);

    return $mine;
}


sub DESTROY
{
    my $self = shift;

    return if $self->{owner} != $$;

    local $?;
    kill KILL => $_ for @{ $self->{pids} || [] };
    waitpid $_, 0 for @{ $self->{pids} || [] };
    File::Path::remove_tree($self->{dir});
}

1;
