# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

package IdempotencyTest::Redis;

# A Redis of a test's own: start, stop, freeze, restart, ask.  And a proxy
# before it that can be told to spoil what the server answers, so that a test
# has the failures of a network at the moment it wants them.
#
# Both die with the test.  See README.md beside this directory.

use strict;
use warnings;

use File::Path ();
use IO::Select;
use IO::Socket::INET;
use IO::Socket::IP;
use POSIX ();
use Socket qw(IPPROTO_TCP SOL_SOCKET SO_RCVTIMEO TCP_NODELAY);

use IdempotencyTest::Process;

our @All;


# port, dir: where; host: 127.0.0.1 or ::1; options: more for redis-server;
# lazy: not now, but when it is launched

sub start
{
    my ($class, %o) = @_;

    my $self = bless { host => '127.0.0.1', %o }, $class;
    push @IdempotencyTest::Redis::All, $self;

    File::Path::make_path($self->{dir});
    $self->spawn if !$o{lazy};

    return $self;
}


sub spawn
{
    my ($self) = @_;

    $self->launch;
    $self->wait_up;
}


# many are up sooner if all are launched before the first is waited for

sub launch
{
    my ($self) = @_;

    my $pid = fork;
    die "fork: $!\n" if !defined $pid;

    if ($pid == 0) {
        open STDIN, '<', '/dev/null';
        open STDOUT, '>>', "$self->{dir}/log";
        open STDERR, '>&', \*STDOUT;
        exec 'setpriv', '--pdeathsig', 'KILL',
             $ENV{IDEMPOTENCY_REDIS_SERVER} || 'redis-server', $self->arguments
            or POSIX::_exit(127);
    }

    $self->{pid} = $pid;
    delete @$self{qw(stopped paused)};
}


sub arguments
{
    my ($self) = @_;

    return ('--bind', $self->{host}, '--port', $self->{port},
            '--dir', $self->{dir}, '--save', '', '--appendonly', 'no',
            '--daemonize', 'no', @{ $self->{options} || [] });
}


sub wait_up
{
    my ($self) = @_;

    my $pid = $self->{pid};

    IdempotencyTest::Process::wait_for(
        sub { IdempotencyTest::Process::is_listening($self->{port})
              || !IdempotencyTest::Process::is_alive($pid) }, 20);

    die "the server does not start, see $self->{dir}/log\n"
        if !IdempotencyTest::Process::is_alive($pid);
}


sub is_up { !$_[0]{stopped} && !$_[0]{paused} }


# one command, its arguments as given; the reply as Redis sent it, in Perl form

sub command
{
    my ($self, @args) = @_;

    my $s = $self->connection;

    send_command($s, @args);
    return read_reply($s);
}


sub connection
{
    my ($self) = @_;

    my $s = IO::Socket::IP->new(PeerHost => $self->{host} || '127.0.0.1',
                                PeerPort => $self->{port}, Timeout => 5,
                                Type => Socket::SOCK_STREAM)
        or die "redis: $!\n";

    setsockopt $s, SOL_SOCKET, SO_RCVTIMEO, pack 'l!l!', 5, 0;

    if (my $auth = $self->{auth}) {
        send_command($s, 'AUTH', @$auth);
        read_reply($s);
    }

    return $s;
}


sub send_command
{
    my ($s, @args) = @_;

    print $s '*' . @args . "\r\n",
             map { '$' . length($_) . "\r\n$_\r\n" } @args;
    $s->flush;
}


sub read_reply
{
    my $s = shift;

    my $line = <$s>;
    die "redis: no reply\n" if !defined $line;

    $line =~ s/\r\n$//;
    my $type = substr $line, 0, 1, '';

    return $line if $type eq '+' || $type eq ':';
    die "redis: $line\n" if $type eq '-';

    return undef if $line < 0;

    if ($type eq '$') {
        read $s, my $data, $line + 2;
        return substr $data, 0, $line;
    }

    return [ map { read_reply($s) } 1 .. $line ];
}


# A record, field by field (docs/redis-internals.md has what they are), or
# undef; and one to be written in its place, for "life" ms or for ever.  "s" is
# its state, 1 in progress; "q": somebody waits.

my $Form = 'a2 C5 x Q> a8 a16 a69 N N a*';
my @Fields = qw(magic v s r h q g i t c);

sub record
{
    my ($self, $name) = @_;

    my $value = $self->command('GET', $name);
    return if !defined $value;

    my (%f, $details);
    (@f{@Fields}, $details, undef, $f{b}) = unpack $Form, $value;
    $f{d} = substr $f{b}, 0, $details, '';

    return \%f;
}

sub packed
{
    my ($self, $f) = @_;

    return pack $Form, @$f{@Fields}, length $f->{d}, length $f->{b},
                       $f->{d} . $f->{b};
}

sub write_record
{
    my ($self, $name, $f, $life) = @_;

    return $self->write($name, $self->packed($f), $life);
}

# A record that no begin can use; one whose commits the server refuses, until it
# is accepted again; no room for responses, and room again; all connections are
# closed.  As Postgres.pm has it.

sub corrupt
{
    my ($self, $name) = @_;

    $self->write_record($name, { %{ $self->record($name) }, c => 'nonsense' },
                        100_000);
}

sub refuse
{
    my ($self, $name) = @_;

    $self->command('DEL', $name);
    $self->command('HSET', $name, 'something', 'else');
}

sub accept
{
    my ($self, $name) = @_;

    $self->command('DEL', $name);
}

sub hang_up { $_[0]->command(qw(CLIENT KILL TYPE normal SKIPME yes)) }

sub full { $_[0]->command('CONFIG', 'SET', 'maxmemory', 1) }
sub not_full { $_[0]->command('CONFIG', 'SET', 'maxmemory', 0) }

sub write
{
    my ($self, $name, $value, $life) = @_;

    $self->command('SET', $name, $value, $life ? ('PX', $life) : ());
}


# the same as the version before has it, a list

sub write_old
{
    my ($self, $name, $f, $life) = @_;

    my @list = (pack('a2 C2 Q> a8 a69 a*', $f->{magic}, 1, @$f{qw(h g i c d)}),
                $f->{t});

    splice @list, 1, 0,
           pack 'a2 C3 Q> N a*', $f->{magic}, 1, @$f{qw(s r g)},
                length $f->{b}, $f->{b}
        if $f->{s} != 1;

    $self->write_list($name, $life, @list, $f->{q} ? 'w' : ());
}

sub write_list
{
    my ($self, $name, $life, @list) = @_;

    $self->command('DEL', $name);
    $self->command('RPUSH', $name, @list);
    $self->command('PEXPIRE', $name, $life) if $life;
}


# How often each command was called, since reset_calls; also by scripts

sub reset_calls
{
    my ($self) = @_;

    $self->command('CONFIG', 'RESETSTAT');

    $self->{monitor} = $self->connection;
    $self->{seen} = {};
    send_command($self->{monitor}, 'MONITOR');
    read_reply($self->{monitor});
}

sub calls
{
    my ($self) = @_;

    my %calls;
    for (split /\r\n/, $self->command('INFO', 'commandstats')) {
        $calls{$1} = $2 if /^cmdstat_([^:]+):calls=(\d+)/;
    }

    return \%calls;
}


# ... and those only that came from outside, if it was reset before

sub commands
{
    my ($self) = @_;

    return $self->calls if !$self->{monitor};

    my ($s, $calls) = @$self{qw(monitor seen)};
    my $last = 'end-' . rand;

    $self->command('PING', $last);

    while (defined(my $line = <$s>)) {
        last if $line =~ /$last/;
        $calls->{lc $1}++ if $line =~ /^\+[\d.]+ \[\d+ (?!lua)\S+\] "(\w+)"/;
    }

    return $calls;
}

sub round_trips
{
    my $calls = $_[0]->commands;
    my $n = 0;

    $n += $calls->{$_} || 0 for qw(evalsha eval set delifeq delex);

    return $n;
}


# Whether the servers of the tests have a command, or something else: since which
# version of Redis and of Valkey; undef: never.

my %Since = (
    'NX GET'        => [ 700, 700 ],            # SET ... NX GET
    IFEQ            => [ undef, 801 ],          # SET ... IFEQ
    DELIFEQ         => [ undef, 900 ],
    errorstats      => [ 602, 602 ],            # INFO errorstats
    subcommandstats => [ 700, 700 ],            # INFO commandstats: cluster|slots
    channels        => [ 602, 602 ],            # of publishers, in an ACL
    'pause writes'  => [ 602, 602 ],            # CLIENT PAUSE ... WRITE
    'sentinel acl'  => [ 602, 602 ],            # ACL, sentinel sentinel-pass
    shards          => [ 700, 700 ],            # SSUBSCRIBE
    rights          => [ 700, 700 ],            # a script may ask for them
    'cluster-port'  => [ 700, 700 ],
    hostnames       => [ 700, 700 ],            # of the nodes of a cluster
    migration       => [ 602, 602 ],            # cluster-allow-replica-migration
);

sub knows
{
    my ($class, $what) = @_;

    our ($is_valkey, $version);

    if (!$version) {
        my $server = $ENV{IDEMPOTENCY_REDIS_SERVER} || 'redis-server';
        my $about = qx($server --version);

        $version = 100 * $1 + $2 if $about =~ /\bv=(\d+)\.(\d+)/;
        $is_valkey = $about =~ /valkey/i ? 1 : 0;
    }

    my $since = $Since{$what}[$is_valkey];

    return defined $since && $version >= $since ? 1 : 0;
}


# ACL SETUSER, without channels where the server has none

sub set_user
{
    my ($self, @words) = @_;

    @words = grep { !/^(?:&.*|resetchannels|allchannels)$/ } @words
        if !$self->knows('channels');

    return $self->command('ACL', 'SETUSER', @words);
}


# how often an error of that kind was the answer, since reset_calls; undef where
# the server does not count them

sub errors
{
    my ($self, $kind) = @_;

    return if !$self->knows('errorstats');
    return $self->command('INFO', 'errorstats')
           =~ /^errorstat_$kind:count=(\d+)/m ? $1 : 0;
}


sub keys { sort @{ $_[0]->command('KEYS', $_[1] || '*') } }


# a frozen server has its connections open, and answers nothing

sub pause
{
    my ($self) = @_;

    $self->{paused} = 1;
    kill STOP => $self->{pid};
    IdempotencyTest::Process::wait_for(sub { $self->state eq 'T' });
}

sub resume
{
    my ($self) = @_;

    delete $self->{paused};
    kill CONT => $self->{pid};
}


sub state
{
    my ($self) = @_;

    open my $in, '<', "/proc/$self->{pid}/stat" or return '';
    return (split ' ', (<$in> =~ s/.*\) //r))[0];
}


# what it has is lost, unless its options say otherwise

sub kill_it
{
    my ($self, $signal) = @_;

    return if $self->{stopped}++ || !$self->{pid};

    kill $signal || 'KILL', $self->{pid};
    kill CONT => $self->{pid};
    IdempotencyTest::Process::wait_for(sub { !IdempotencyTest::Process::is_alive($self->{pid}) },
                              3)
        or kill KILL => $self->{pid};
    waitpid $self->{pid}, 0;
}

# it listens before it has read its file again, and says LOADING until then

sub restart
{
    my ($self, $signal) = @_;

    $self->kill_it($signal);
    $self->spawn;
    IdempotencyTest::Process::wait_for(sub { eval { $self->command('PING') };
                                             ($@ || '') !~ /LOADING/ }, 20);
}


sub stop
{
    my ($self, $signal) = @_;

    $self->kill_it($signal || 'TERM');
    File::Path::remove_tree($self->{dir}) if $self->{dir};
}

sub stop_all { $_->stop for splice @IdempotencyTest::Redis::All }


package IdempotencyTest::RedisProxy;

# Passes bytes on between nginx and a server, until it is told otherwise:
#
#   pass      as they are
#   tear      replies one byte at a time
#   lose n    the reply after the next n (0), and closes its connection
#   hold      no reply at all, until "pass"
#   late n    each reply n ms later than it came
#   twice     the next reply two times
#   stale     the last reply once more, before the next one
#   garbage   bytes that are no reply, in place of the next one
#   after n   the next n replies, and no other before a message has passed; then
#             those, and pass
#   kept      no other way than before; returns when "after" has kept a reply
#   deaf      reads nothing that comes next from nginx, until "pass" or "cut"
#   early     answers the next command with an error as soon as it begins, then
#             is deaf; when it passes again the server gets the rest, and what
#             it answers to that command is dropped
#   narrow n  n bytes of nginx on each connection, and nothing that comes after
#             them
#   refuse    closes every new connection as soon as it is there
#   lead n    new connections lead to the server on port n, then pass
#   old       as they are, but the server says that it is Redis 6.2
#   cut       closes all connections now, then pass
#   down      closes all connections now, then refuse
#   silent    nothing passes either way, and who connects gets no answer, as
#             where packets are dropped; until "cut"

use strict;
use warnings;

use IO::Socket::INET;
use Socket qw(IPPROTO_TCP TCP_NODELAY);

use IdempotencyTest::Process qw(start_child);

our @ISA = 'IdempotencyTest::Redis';


sub start
{
    my ($class, %o) = @_;

    my $listen = IO::Socket::INET->new(LocalAddr => '127.0.0.1',
                                       LocalPort => $o{port}, Listen => 128,
                                       ReuseAddr => 1, Proto => 'tcp')
        or die "proxy: $!\n";

    my ($pid, $control) = start_child('proxy', sub { run($listen, shift, $o{to}) });

    my $self = bless { %o, pid => $pid, control => $control }, $class;
    push @IdempotencyTest::Redis::All, $self;

    return $self;
}


# in force when it returns

sub tell
{
    my ($self, $mode) = @_;

    syswrite $self->{control}, "$mode\n";
    sysread $self->{control}, my $ok, 1;
}


sub run
{
    my ($listen, $control, $to) = @_;

    my $mode = 'pass';
    my $last = '';
    my $select = IO::Select->new($listen, $control);
    my (%peer, %is_client, $passing, $asked, @kept, @full, @deaf, %answered,
        %taken);

    my $close = sub {
        for my $s (@_) {
            next if !$s;
            $select->remove($s);
            delete $is_client{$s};
            delete $peer{$s};
            delete $answered{$s};
            delete $taken{$s};
            @deaf = grep { $_ != $s } @deaf;
            close $s;
        }
    };

    while (1) {

        # what it is told comes first: nginx may have sent its next command

        for my $s (sort { ($b == $control) <=> ($a == $control) }
                   $select->can_read)
        {
            if ($s == $control) {
                sysread($control, my $text, 100) or return;

                if ($text =~ /^kept/) {
                    $asked = !@kept;
                    syswrite $control, '.' if @kept;
                    next;
                }

                ($mode, $passing) = $text =~ /^(\w+)(?: (\d+))?/;
                ($asked, @kept) = (0);
                %taken = ();

                if ($mode eq 'deaf') {
                    @deaf = map { $_->[1] }
                            grep { $is_client{ $_->[1] } } values %peer;
                    $select->remove(@deaf);

                } elsif ($mode eq 'pass') {
                    $select->add(splice @deaf);
                }

                if ($mode eq 'lead') {
                    $to = $passing;
                    $mode = 'pass';
                }

                if ($mode eq 'silent') {
                    $select->remove($listen, map { $_->[1] } values %peer);
                    @full = fill($listen);
                    syswrite $control, '.';
                    next;
                }

                if (@full) {
                    close $_ for splice @full;
                    $listen->blocking(0);
                    close $_ while $_ = $listen->accept;
                    $listen->blocking(1);
                    $select->add($listen);
                }

                if ($mode eq 'cut' || $mode eq 'down') {
                    for my $pair (map { [ @$_ ] } values %peer) {
                        $close->(@$pair) if $peer{ $pair->[0] };
                    }
                    $mode = $mode eq 'cut' ? 'pass' : 'refuse';
                }

                syswrite $control, '.';
                next;
            }

            if ($s == $listen) {
                my $client = $listen->accept or next;

                my $server = $mode eq 'refuse' ? undef
                    : IO::Socket::INET->new(PeerAddr => "127.0.0.1:$to",
                                            Proto => 'tcp');
                if (!$server) {
                    close $client;
                    next;
                }

                for ($client, $server) {
                    setsockopt $_, IPPROTO_TCP, TCP_NODELAY, 1;
                    $select->add($_);
                }

                $peer{$client} = [ $server, $client ];
                $peer{$server} = [ $client, $server ];
                $is_client{$client} = 1;
                next;
            }

            my $pair = $peer{$s} or next;
            my ($other) = @$pair;

            # told to be deaf in this round

            next if grep { $_ == $s } @deaf;

            my $data;
            if (!sysread $s, $data, 65536) {
                $close->($s, $other);
                next;
            }

            $data =~ s/(\$7\r\nversion\r\n)\$\d+\r\n[\d.]+/$1\$6\r\n6.2.14/
                if $mode eq 'old' && !$is_client{$s};

            if (!$is_client{$s} && delete $answered{$s}) {
                $data =~ s/^([^\r]*)\r\n//;
                substr $data, 0, $1 + 2, '' if $1 =~ /^\$(\d+)/;
                next if $data eq '';
            }

            next if $is_client{$s} && $mode eq 'narrow'
                    && ($taken{$s} += length $data) > $passing;

            if ($is_client{$s} && $mode eq 'early') {
                write_all($s, "-ERR before its time\r\n");
                write_all($other, $data);
                $answered{$other} = 1;
                push @deaf, $s;
                $select->remove($s);
                $mode = 'deaf';

            } elsif ($is_client{$s}
                     || $mode =~ /^(?:pass|old|refuse|deaf|narrow)$/) {
                write_all($other, $data);

            } elsif ($mode eq 'tear') {
                write_all($other, $_) for split //, $data;

            } elsif ($mode eq 'late') {
                select undef, undef, undef, $passing / 1000;
                write_all($other, $data);

            } elsif ($mode eq 'twice') {
                write_all($other, $data . $data);
                $mode = 'pass';

            } elsif ($mode eq 'stale') {
                write_all($other, $last . $data);
                $mode = 'pass';

            } elsif ($mode eq 'garbage') {
                write_all($other, "HTTP/1.1 200 OK\r\n\r\n");
                $mode = 'pass';

            } elsif ($mode eq 'after') {
                if ($data =~ /\$7\r\nmessage\r\n/) {
                    write_all(@$_) for [ $other, $data ], @kept;
                    $mode = 'pass';

                } elsif ($passing-- > 0) {
                    write_all($other, $data);

                } else {
                    push @kept, [ $other, $data ];
                    syswrite $control, '.' if $asked;
                    $asked = 0;
                }

            } elsif ($mode eq 'lose') {
                if ($passing) {
                    $passing--;
                    write_all($other, $data);

                } else {
                    $close->($s, $other);
                    $mode = 'pass';
                }
            }

            $last = $data if !$is_client{$s};
        }
    }
}


# Connections to it, as many as the kernel takes: it drops what comes then, and
# who connects hears nothing.

sub fill
{
    my ($listen) = @_;

    my ($failed, @full) = (0);

    while (@full < 1000 && $failed < 3) {
        my $s = IO::Socket::INET->new(PeerAddr => '127.0.0.1',
                                      PeerPort => $listen->sockport,
                                      Proto => 'tcp', Blocking => 0)
            or last;

        push @full, $s;
        $failed++ if !IO::Select->new($s)->can_write(0.2);
    }

    return @full;
}


sub write_all
{
    my ($s, $data) = @_;

    while (length $data) {
        my $n = syswrite $s, $data or return;
        substr $data, 0, $n, '';
    }
}

1;
