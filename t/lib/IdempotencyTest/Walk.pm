# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

package IdempotencyTest::Walk;

# Lets each allocation that a request makes fail once, and then once more with
# all that follow it.  The client gets an answer, the application runs at most
# once, and a retry is served at once.
#
#   use IdempotencyTest::Faults;       # before IdempotencyTest
#   use IdempotencyTest;
#   use IdempotencyTest::Walk;
#
#   walk(name => 'fresh', retry => [200, 507]);
#   walked(50);                        after run_tests(): at least so many calls
#                                      of the module failed; with FAULTS_REPORT=1
#                                      it tells which did not
#
# A block has a location "/" with idempotency and the application behind it.
#
# "prepare" comes before the failure and "request" is hit by it; both get a key,
# which is the "op" of the application, too.  "answers" are the statuses of a
# request that nothing happened to, "retry" those of "again", by default the
# same once more.  Where the application ran and there was no memory to hold its
# response, the record says so: 507.  "runs" is how often the application may
# have run, "never" what must not be in the answer.  "upto": no more than so many
# steps, where each allocates more than the one before.
#
# A store whose connection broke for want of memory is away for a moment, and a
# lock that could not be given back to it is tried again soon: then the retry
# is asked again for as long, which is far less than the lease.  With no memory
# at all for a while, a lock in it ends with its lease: of that there is one
# walk, with a short one ("all").

use strict;
use warnings;

use Exporter 'import';
use Test::More ();

use IdempotencyTest;
use IdempotencyTest::Client;
use IdempotencyTest::Faults;

our @EXPORT = qw(walk walked works told settled);

my $Remote = ($ENV{IDEMPOTENCY_STORE} || '') =~ /^(?:redis|postgres)$/;


sub walk
{
    my %o = (most => 250, answers => [200], retry => [200], runs => 1,
             prepare => sub { }, body => '{"a":1}', @_);

    $o{request} ||= sub {
        my $c = send_post("/ok?op=$_[0]", $o{body},
                          [ 'Idempotency-Key' => $_[0],
                            'Content-Type' => 'application/json' ]);
        return $c->read_response(6);
    };

    $o{again} ||= $o{request};

    my (@bad, $balance);
    my $steps = 0;

    for my $all (0, $Remote && !$o{all} ? () : 1) {
        for my $n (1 .. $o{upto} || $o{most} + 1) {
            my $key = new_key();

            works();
            $o{prepare}->($key);

            faults_arm($n, all => $all, %{ $o{arm} || {} });
            my $got = eval { $o{request}->($key) };
            my $died = $@;
            my $f = faults_disarm();

            if (!$f->{failed}) {
                push @bad, "without a failure: " . told($got)
                    if !$got || !grep { $_ == $got->status } @{ $o{answers} };
                last;
            }

            $steps++;

            my $what = sprintf '%s %d%s: ', $f->{name}, $n, $all ? '+' : '';
            my $where = " ($f->{where})";

            push @bad, map { "$what$_$where" } answer_is_bad(\%o, $got, $died),
                       retry_is_bad(\%o, $key);

            # a request that failed may last as long as its client
            IdempotencyTest::Client::close_all();

            if ($n > $o{most}) {
                push @bad, "more than $o{most} steps";
            }
        }

        # the first walk may have made what a worker makes once

        works();
        my $now = settled();

        push @bad, "not freed: $balance before, $now after"
            if defined $balance && more($balance, $now);
        $balance = $now;
    }

    Test::More::cmp_ok($steps, '>', 1, "$o{name}: $steps failures");
    Test::More::ok(!@bad, "$o{name}: served all the same")
        or Test::More::diag(map { "$_\n" } @bad);
}


# an answer, and a clear one

sub answer_is_bad
{
    my ($o, $got, $died) = @_;

    return "no answer $died" if !$got;
    return told($got)
        if !grep { $_ == $got->status } @{ $o->{answers} }, 500, 503;
    return 'truncated' if $got->truncated && !$o->{truncated};
    return 'tells ' . $got->body if $o->{never} && $got->raw =~ $o->{never};
    return;
}


# no lock: the same once more is served at once

sub retry_is_bad
{
    my ($o, $key) = @_;

    my $ask = sub { eval { $o->{again}->($key) } };
    my $is_served = sub {
        my $status = $_[0]->status;
        return scalar grep { $_ == $status } @{ $o->{retry} };
    };

    my $again = $ask->();
    my $died = $@;

    if ($Remote) {
        wait_for(sub {
            !$again || $is_served->($again) || !($again = $ask->());
        }, 5);
    }

    my $runs = app_count($key);

    return (!$again ? "then no answer $died"
            : !$is_served->($again) ? 'then ' . told($again) : (),
            $runs > $o->{runs} ? "ran $runs times" : ());
}


# the store is there; what a worker keeps ready for bad times is complete

sub works
{
    wait_for(sub {
        my $key = new_key();
        my $got = send_post("/status/400?op=$key", 'x',
                            { 'Idempotency-Key' => $key })->read_response(6);
        return $got && $got->status == 400;
    }, 10) or die "the store is gone for good\n";
}


sub told
{
    my $response = shift;

    return 'nothing' if !$response;
    return join ' ', $response->status || 'closed', $response->error_code;
}


# what is under way has an end

sub settled
{
    my ($last, $same) = ('', 0);

    wait_for(sub {
        my $now = faults_balance();
        $same = $now eq $last ? $same + 1 : 0;
        $last = $now;
        return $same > 5;
    });

    return $last;
}


# a connection to the store has its buffers, or has none at the moment

sub more
{
    my ($before, $after) = map { [ split ' ' ] } @_;
    my $some = $Remote ? 8 : 0;

    return $after->[0] > $before->[0] + $some
           || $after->[1] > $before->[1] + ($Remote ? 2 : 0);
}


# how much of what can fail was seen to

sub walked
{
    my $least = shift;

    my $sites = faults_sites();
    my @calls = faults_calls();
    my @failed = grep { $sites->{$_} } @calls;

    Test::More::note(sprintf '%d of %d calls in the module failed',
                     scalar @failed, scalar @calls);
    Test::More::cmp_ok(scalar @failed, '>', $least,
                       'many places were made to fail');

    if ($ENV{FAULTS_REPORT}) {
        print STDERR "# not failed: $_\n"
            for sort map { IdempotencyTest::Faults::place($_) }
                grep { !$sites->{$_} } @calls;
    }
}


1;
