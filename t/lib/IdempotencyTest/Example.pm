# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

package IdempotencyTest::Example;

# Runs a configuration of examples/ as it is: example('ietf') is the text of
# examples/ietf.conf for a "--- http_config eval" section, with three things
# replaced, each of which has to be there: the port it listens on, the address
# of the application, and the store under test in place of "on".  A block that
# can't wait for hours changes a time as well, by a function that sees the text
# in $_ and has to find what it changes.
#
# The example listens on PORT_2: example_post() and its like send there.
# app_answer() tells the application what to answer to one URI, so that a test
# can send the requests of a document and get the responses it prints.

use strict;
use warnings;

use JSON::PP ();

require Exporter;

our @ISA = 'Exporter';
our @EXPORT = qw(example example_post example_send example_request app_answer);


sub example
{
    my ($name, $change) = @_;

    my $file = "examples/$name.conf";

    open my $in, '<', $file or die "$file: $!\n";
    local $_ = do { local $/; <$in> };
    close $in;

    s/\blisten( +)8080;/listen${1}127.0.0.1:\$TEST_NGINX_PORT_2;/
        or die "$file does not listen on 8080\n";
    s/\bserver( +)127\.0\.0\.1:9000;/server${1}127.0.0.1:\$TEST_NGINX_APP_PORT;/
        or die "$file has no application on 127.0.0.1:9000\n";
    s/\bidempotency( +)on;/idempotency${1}\$TEST_STORE;/g
        or die "$file is not on\n";

    if ($change) {
        my $before = $_;

        $change->();
        die "$file has not what is to be changed\n" if $_ eq $before;
    }

    return $_;
}


sub example_post { example_request('POST', @_) }

sub example_request
{
    my ($method, $uri, $body, $headers) = @_;

    return IdempotencyTest::http_request($method, $uri, $body, $headers,
                                  port => $ENV{TEST_NGINX_PORT_2});
}


# sends, and returns the connection

sub example_send
{
    my ($uri, $body, $headers) = @_;

    return IdempotencyTest::send_post($uri, $body, $headers,
                                      port => $ENV{TEST_NGINX_PORT_2});
}


# What the application answers to requests for this path: one answer for each
# execution, and the last one for all that follow.  An answer is a hash of
# status, headers [[name, value] ...], body, in which {run} is the number of the
# execution and {request:<member>} what the request's JSON says there; ms (late),
# hold (until app_release), close or reset (instead of any answer).

sub app_answer
{
    my ($path, @answers) = @_;

    for my $answer (@answers) {
        $answer->{headers} ||= [ [ 'Content-Type', 'application/json' ] ];
    }

    (my $op = $path) =~ s/([^\w.\/-])/sprintf '%%%02X', ord $1/ge;

    my $r = IdempotencyTest::http_request(
        'POST', "/_answer?op=$op", JSON::PP->new->latin1->encode(\@answers),
        undef, port => $ENV{TEST_NGINX_APP_PORT});

    die "the application does not learn: " . $r->body if $r->body ne 'ok';
}

1;
