# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# Sentinels that do not tell the truth, or not the same: whom to believe.
#
# The servers are real, the sentinels are played: they answer and publish what
# the test wants.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';
use IO::Select;
use IO::Socket::INET;

our ($dir, @servers, $replica, @sentinels);
our $me = $$;

if (($ENV{IDEMPOTENCY_STORE} || '') eq 'redis') {
    @servers = map { start_redis() } 1 .. 2;
    $replica = start_redis('--replicaof', '127.0.0.1', $servers[0]{port},
                           '--repl-diskless-sync-delay', 0);

    $dir = "$servers[0]{dir}.sentinels";
    mkdir $dir;

    @sentinels = map { sentinel($_) } 0 .. 2;
    $ENV{TEST_NGINX_SENTINELS} = join ' ', map { "127.0.0.1:$_->{port}" }
                                 @sentinels;

    wait_for(sub { $replica->command('INFO', 'replication')
                   =~ /master_link_status:up/ }, 10)
        or die "no replica\n";
}

END {
    local $?;

    if ($dir && $$ == $me) {
        kill KILL => map { $_->{pid} } @sentinels;
        waitpid $_->{pid}, 0 for @sentinels;
        unlink glob "$dir/*";
        rmdir $dir;
    }
}

# what it has to say is in files: "answer" to a question (a port), "epoch" of
# that, if it tells, "publish" to who listens ("CLOSE" ends them); "asked" grows
# by a byte for each question

sub sentinel
{
    my ($n) = @_;

    my $listen = IO::Socket::INET->new(LocalAddr => '127.0.0.1', Listen => 64,
                                       ReuseAddr => 1) or die $!;
    my $pid = fork;
    die "fork: $!\n" if !defined $pid;

    if ($pid == 0) {
        $SIG{$_} = 'DEFAULT' for qw(INT TERM HUP);
        $SIG{PIPE} = 'IGNORE';
        eval { play($n, $listen) };
        print STDERR "# sentinel: $@" if $@;
        POSIX::_exit(0);
    }

    return { pid => $pid, port => $listen->sockport };
}

sub play
{
    my ($n, $listen) = @_;

    my $select = IO::Select->new($listen);
    my (%in, %listens);
    my $parent = getppid;

    while (getppid == $parent) {

        for my $s ($select->can_read(0.02)) {

            if ($s == $listen) {
                $select->add(scalar $s->accept);
                next;
            }

            if (!sysread $s, $in{$s}, 65536, length($in{$s} || '')) {
                $select->remove($s);
                delete $listens{$s};
                delete $in{$s};
                close $s;
                next;
            }

            while ($in{$s} =~ s/\A\*(\d+)\r\n((?:\$\d+\r\n[^\r]*\r\n)*)//) {
                my @args = $2 =~ /\$\d+\r\n([^\r]*)\r\n/g;
                syswrite $s, reply($n, $s, \%listens, @args);
            }
        }

        if (defined(my $text = get("publish.$n"))) {
            unlink "$dir/publish.$n";

            for my $s (values %listens) {
                if ($text eq 'CLOSE') {
                    shutdown $s, 2;

                } else {
                    my $channel = $text =~ s/\A(\+\S+): // ? $1
                                                         : '+switch-master';

                    syswrite $s, "*3\r\n" . join '',
                        map { '$' . length($_) . "\r\n$_\r\n" }
                        'message', $channel, $text;
                }
            }
        }
    }
}

sub reply
{
    my ($n, $s, $listens, @args) = @_;

    if ($args[0] eq 'SUBSCRIBE') {
        return "-NOPERM no\r\n"
            if -e "$dir/narrow.$n" && $args[1] ne '+switch-master';

        $listens->{$s} = $s;
        return "*3\r\n\$9\r\nsubscribe\r\n\$" . length($args[1])
            . "\r\n$args[1]\r\n:1\r\n";
    }

    open my $out, '>>', "$dir/asked.$n" or die $!;
    print $out '.';
    close $out;

    my $port = get("answer.$n");

    if (lc $args[1] eq 'master') {
        my $epoch = get("epoch.$n");

        return "-NOPERM no\r\n" if !defined $epoch;
        return "*4\r\n" . join '', map { '$' . length($_) . "\r\n$_\r\n" }
                                   'name', 'main', 'config-epoch', $epoch;
    }

    return $port =~ /^\d+$/
        ? "*2\r\n\$9\r\n127.0.0.1\r\n\$" . length($port) . "\r\n$port\r\n"
        : $port;
}

sub get
{
    open my $in, '<', "$dir/$_[0]" or return undef;
    local $/;
    return scalar <$in> // '';
}

sub put
{
    my ($name, $text) = @_;

    open my $out, '>', "$dir/$name.new" or die $!;
    print $out $text;
    close $out;
    rename "$dir/$name.new", "$dir/$name" or die $!;
}

# a port for each of the three

sub say_ports { my $n = 0; put('answer.' . $n++, $_) for @_ }

# an epoch for each of the three

sub say_epochs { my $n = 0; put('epoch.' . $n++, $_) for @_ }

sub asked { -s "$dir/asked.$_[0]" || 0 }

# whoever listens comes back, and asks

sub ask_again
{
    my @before = map { asked($_) } 0 .. 2;

    put("publish.$_", 'CLOSE') for 0 .. 2;

    wait_for(sub { grep { asked($_) > $before[$_] } 0 .. 2 }, 15)
        or die "nobody asks\n";
}

sub post { http_post('/ok', 'x', { 'Idempotency-Key' => new_key() })->status }

sub records { my @keys = $_[0]->keys('idempotency:*'); scalar @keys }

add_block_preprocessor(sub {
    my $block = shift;

    if ($dir) {
        $_->command('FLUSHALL') for @servers;
        unlink map { ("$dir/publish.$_", "$dir/asked.$_", "$dir/epoch.$_",
                      "$dir/narrow.$_") } 0 .. 2;
        say_ports(($servers[0]{port}) x 3);
    }
});

our $http = <<'_EOC_';
    idempotency_store own redis {
        sentinel  $TEST_NGINX_SENTINELS master=main;
    }
_EOC_

our $location = <<'_EOC_';
    location / {
        idempotency  own;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_

# with other answers at its start

sub start_with
{
    say_ports(@_);
    nginx_reload() or die "no reload\n";
}

every_block(
    http_config => $http,
    config      => $location,
);

run_tests();

__DATA__

=== TEST 1: the first names a replica, the others the master
--- store: redis
--- client
start_with($::replica->{port}, ($::servers[0]{port}) x 2);

ok(wait_for(sub { post() == 200 }, 10), 'found');
is(post(), 200, 'ran') for 1 .. 5;
cmp_ok(records($::servers[0]), '>=', 6, 'at the master');
error_log_like(qr/can't connect to Redis at 127\.0\.0\.1:$::replica->{port}: it is not a master/, 'told');



=== TEST 2: the first does not know the master, the second talks nonsense
--- store: redis
--- client
start_with("*-1\r\n", "*2\r\n:1\r\n:2\r\n", $::servers[0]{port});

is(post(), 200, 'ran') for 1 .. 3;
is(records($::servers[0]), 3, 'at the master');



=== TEST 3: nobody knows the master, then somebody does
--- store: redis
--- client
start_with(("*-1\r\n") x 3);

is(post(), 503, 'refused');
error_log_like(qr/\[error\] .*nobody tells which server is the master, 127\.0\.0\.1:\d+ was asked last: the sentinel at 127\.0\.0\.1:\d+ has no master named "main"/, 'told');

say_ports("*-1\r\n", $::servers[0]{port}, "*-1\r\n");

ok(wait_for(sub { post() == 200 }, 10), 'found');
error_log_like(qr/\[notice\] .*which server is the master: known again/, 'told');



=== TEST 4: one names another master while ours works
--- store: redis
--- client
is(post(), 200, 'ran');

# the first one is asked first

my $before = asked(0);

say_ports($::servers[1]{port}, ($::servers[0]{port}) x 2);
wait_for(sub { ask_again(); asked(0) > $before }, 10)
    or die "it is not asked\n";

is(post(), 200, 'ran') for 1 .. 5;
is(records($::servers[0]), 6, 'it is not believed');

# all do

say_ports(($::servers[1]{port}) x 3);
ask_again();

ok(wait_for(sub { post(); records($::servers[1]) }, 10), 'they are believed');

my $first = records($::servers[0]);
is(post(), 200, 'ran') for 1 .. 3;
is(records($::servers[0]), $first, 'the other is left');



=== TEST 5: one names another master when ours is gone
--- store: redis
--- client
is(post(), 200, 'ran');

say_ports($::servers[0]{port}, $::servers[1]{port}, $::servers[0]{port});
$::servers[0]->kill_it('KILL');

ok(wait_for(sub { post() == 200 }, 15), 'it is believed');
is(post(), 200, 'ran') for 1 .. 3;
cmp_ok(records($::servers[1]), '>=', 4, 'at the other');

$::servers[0]->spawn;



=== TEST 6: what is published
--- store: redis
--- client
is(post(), 200, 'ran');

my ($one, $two) = map { $_->{port} } @::servers;

for my $text ("other 127.0.0.1 $one 127.0.0.1 $two", 'main', '',
              "main 127.0.0.1 $one ? $two", "main 127.0.0.1 $one 127.0.0.1 x")
{
    put("publish.$_", $text) for 0 .. 2;
    wait_for(sub { !grep { -e "$::dir/publish.$_" } 0 .. 2 }, 5);
    is(post(), 200, 'ran');
}

is(records($::servers[0]), 6, 'not ours, or not to be understood');

# again and again: on a busy machine one may come before we listen

ok(wait_for(sub {
       put("publish.$_", "main 127.0.0.1 $one 127.0.0.1 $two") for 0 .. 2;
       post();
       return records($::servers[1]);
   }, 10), 'believed');
error_log_like(qr/\[notice\] .*the master "main" is at 127\.0\.0\.1:$two/, 'told');



=== TEST 7: whichever of them publishes the newest configuration
--- store: redis
--- client_timeout: 60
--- client
my @ports = map { $_->{port} } @::servers;
my @says = ($ports[0]) x 3;
my @epochs = (4) x 3;
my $now = 0;

# one lets us listen to that alone
put('narrow.2', '');
say_epochs(@epochs);
start_with(@says);
ok(wait_for(sub { post() == 200 }, 10), 'ran');

# the others are late, and the master works
for my $n (0 .. 2) {
    sleep 1;
    my ($old, $new) = @ports[$now, 1 - $now];
    $now = 1 - $now;
    $says[$n] = $new;
    $epochs[$n] = 5 + $n;
    say_epochs(@epochs);
    say_ports(@says);
    $_->command('FLUSHALL') for @::servers;
    put("publish.$n", "main 127.0.0.1 $old 127.0.0.1 $new");
    ok(wait_for(sub { post(); records($::servers[$now]) }, 4),
       "that of sentinel $n is believed");
}



=== TEST 8: an older configuration is not believed
--- store: redis
--- client_timeout: 60
--- client
my ($one, $two) = map { $_->{port} } @::servers;

say_epochs(7, 7, 7);
start_with(($one) x 3);
ok(wait_for(sub { post() == 200 }, 10), 'ran');

# published late, by one that was cut off
for my $n (0 .. 2) {
    my @epochs = (7) x 3;
    my @says = ($one) x 3;
    ($epochs[$n], $says[$n]) = (6, $two);
    say_epochs(@epochs);
    say_ports(@says);
    my $before = asked($n);
    put("publish.$n", "main 127.0.0.1 $one 127.0.0.1 $two");
    ok(wait_for(sub { asked($n) > $before }, 10), "sentinel $n is asked");
    sleep 0.3;
    is(post(), 200, 'ran') for 1 .. 3;
}

is(records($::servers[1]), 0, 'not there');

# ours is gone: better none than a former master
say_epochs(7, 6, 7);
say_ports("*-1\r\n", $two, "*-1\r\n");
$::servers[0]->kill_it('KILL');
my $asked = asked(1);
post() for 1 .. 3;
ok(wait_for(sub { asked(1) > $asked }, 10), 'it is asked');
is(post(), 503, 'refused');
is(records($::servers[1]), 0, 'still not there');

# most say so: they were set up anew
say_epochs(0, 0, 0);
say_ports(($two) x 3);
ok(wait_for(sub { post() == 200 }, 15), 'found');
ok(records($::servers[1]), 'there');
$::servers[0]->spawn;



=== TEST 9: the workers of one nginx use the same master
--- store: redis
--- workers: 4
--- http_config eval
$::http . '
    server {
        listen 127.0.0.1:$TEST_NGINX_PORT_2 reuseport;
        location / {
            idempotency  own;
            proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
        }
    }'
--- client_timeout: 60
--- client
sub any
{
    return http_post('/ok', 'x', { 'Idempotency-Key' => new_key() },
                     port => $ENV{TEST_NGINX_PORT_2})->status;
}

my ($one, $two) = map { $_->{port} } @::servers;

say_epochs(2, 2, 2);
start_with(($one) x 3);
ok(wait_for(sub { any() == 200 }, 10), 'ran');
any() for 1 .. 30;
sleep 2;

# they come back one by one, and ask
say_epochs(3, 3, 3);
say_ports(($two) x 3);
put("publish.$_", 'CLOSE') for 0 .. 2;
ok(wait_for(sub { any(); records($::servers[1]) }, 10), 'one knows');

my $first = records($::servers[0]);
my $until = Time::HiRes::time() + 3;
my %status;
$status{ any() }++ while Time::HiRes::time() < $until;
is(records($::servers[0]), $first, 'all do');
is_deeply([ keys %status ], [ 200 ], 'and nobody is refused');



=== TEST 10: nothing is asked of a master that is about to be replaced
--- store: redis
--- http_config eval: $::http =~ s/master=main;/master=main; timeout 10s;/r
--- client_timeout: 60
--- client
my ($one, $two) = map { $_->{port} } @::servers;
my $about = sub { "+failover-state-wait-promotion: slave 127.0.0.1:$two "
                  . "127.0.0.1 $two @ $_[0] 127.0.0.1 $_[1]" };

say_epochs(7, 7, 7);
start_with(($one) x 3);
ok(wait_for(sub { post() == 200 }, 10), 'ran');
my $first = records($::servers[0]);

# another one's, or of one that was left, or not to be understood
for my $text ($about->('other', $one), $about->('main', $two),
              '+failover-state-wait-promotion: slave')
{
    put('publish.1', $text);
    wait_for(sub { !-e "$::dir/publish.1" }, 5);
    is(post(), 200, 'ran');
}

is(records($::servers[0]), $first + 3, 'that is nothing to us');

put('publish.1', $about->('main', $one));
error_log_like(qr/\[notice\] .*the master "main" at 127\.0\.0\.1:$one is about to be replaced/, 'told');
my $c = send_post('/ok?op=late', 'x', { 'Idempotency-Key' => new_key() });
sleep 0.5;
is(app_count('late'), 0, 'it waits');
say_epochs(7, 7, 8);
say_ports($one, $one, $two);
put('publish.2', "main 127.0.0.1 $one 127.0.0.1 $two");
is($c->read_response->status, 200, 'ran');
is(records($::servers[0]), $first + 3, 'not at the old one');
ok(records($::servers[1]), 'at the new one');

# a failover that comes to nothing
put('publish.1', $about->('main', $two));
ok(wait_for(sub { 2 == (() = error_log() =~ /about to be replaced/g) }, 5),
   'told');
is(http_post('/ok', 'x', { 'Idempotency-Key' => new_key() })->status, 200,
   'it is asked again after a while');
