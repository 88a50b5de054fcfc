# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

package IdempotencyTest::Browser;

# Headless Chromium, spoken to over its DevTools pipe: what a test of a page
# needs and no more.  Everything that the page says on the console, every
# exception and every violation of its policy is in complaints().

use strict;
use warnings;

use File::Temp ();
use IO::Handle;
use IO::Select;
use JSON::PP ();
use MIME::Base64 ();
use POSIX ();
use Time::HiRes qw(time sleep);

# the machine may be busy with other tests
my $timeout = 30;


sub chromium {
    for my $path ($ENV{CHROMIUM} // (),
                  map { my $dir = $_; map { "$dir/$_" }
                        qw(chromium chromium-browser google-chrome) }
                      split /:/, $ENV{PATH})
    {
        return $path if -x $path;
    }

    die "there is no chromium: run \"make setup\", or name one in CHROMIUM\n";
}


sub new {
    my ($class) = @_;

    my $chromium = chromium();

    pipe my $their_in, my $in or die "pipe: $!\n";
    pipe my $out, my $their_out or die "pipe: $!\n";

    my $self = bless {
        in => $in, out => $out, id => 0, buffer => '', events => [],
        dir => File::Temp->newdir,
    }, $class;

    $self->{pid} = fork // die "fork: $!\n";

    if ($self->{pid} == 0) {
        setpgrp 0, 0;

        # one that is killed leaves what it has there
        $ENV{TMPDIR} = "$self->{dir}";

        # by way of numbers that nothing else has

        POSIX::dup2(fileno $their_in, 200);
        POSIX::dup2(fileno $their_out, 201);
        POSIX::dup2(200, 3);
        POSIX::dup2(201, 4);
        POSIX::close($_) for 5 .. 255;

        open STDIN, '<', '/dev/null';
        open STDOUT, '>', "$self->{dir}/log";
        open STDERR, '>&', \*STDOUT;

        exec $chromium, qw(--headless --no-sandbox --disable-gpu
                           --disable-quic --no-first-run
                           --disable-background-networking
                           --disable-component-update --disable-sync
                           --disable-dev-shm-usage --hide-scrollbars
                           --remote-debugging-pipe),
             "--user-data-dir=$self->{dir}/profile", 'about:blank'
            or POSIX::_exit(127);
    }

    close $their_in;
    close $their_out;
    $in->autoflush(1);

    my $target = $self->call('Target.createTarget', url => 'about:blank');

    $self->{session} = $self->call('Target.attachToTarget',
                                   targetId => $target->{targetId},
                                   flatten => JSON::PP::true)->{sessionId};

    $self->call("$_.enable") for qw(Page Runtime Log Network);

    return $self;
}


sub DESTROY {
    my ($self) = @_;

    local ($?, $!);

    if ($self->{pid}) {
        kill KILL => -$self->{pid};
        waitpid $self->{pid}, 0;
    }
}


# one command of the protocol, and its answer

sub call {
    my ($self, $method, %params) = @_;

    my $id = ++$self->{id};

    local $SIG{PIPE} = 'IGNORE';

    print { $self->{in} } JSON::PP->new->utf8->encode({
        id => $id, method => $method, params => \%params,
        $self->{session} ? (sessionId => $self->{session}) : (),
    }), "\0";

    my $until = time + $timeout;

    while (my $message = $self->read_message($until - time)) {

        if (($message->{id} // 0) == $id) {
            die "$method: $message->{error}{message}\n" if $message->{error};
            return $message->{result};
        }

        push @{ $self->{events} }, $message;
    }

    die "$method: chromium does not answer\n" . $self->log;
}


sub read_message {
    my ($self, $seconds) = @_;

    my $until = time + $seconds;

    while ($self->{buffer} !~ /\0/) {
        IO::Select->new($self->{out})->can_read($until - time) or return undef;
        sysread $self->{out}, $self->{buffer}, 1 << 20, length $self->{buffer}
            or return undef;
    }

    $self->{buffer} =~ s/^(.*?)\0//s;

    return JSON::PP->new->utf8->decode($1);
}


sub log {
    my ($self) = @_;

    open my $fh, '<', "$self->{dir}/log" or return '';
    local $/;
    return <$fh> // '';
}


sub open {
    my ($self, $url) = @_;

    my $r = $self->call('Page.navigate', url => $url);

    die "$url: $r->{errorText}\n" if $r->{errorText};

    $self->wait_for(q{document.readyState === 'complete'
                      && location.href !== 'about:blank'})
        or die "$url: is not loaded\n";
}


# %o: width, height, scheme (light or dark), phone

sub look {
    my ($self, %o) = @_;

    $self->call('Emulation.setDeviceMetricsOverride',
                width => $o{width} // 1200, height => $o{height} // 900,
                deviceScaleFactor => $o{phone} ? 2 : 1,
                mobile => $o{phone} ? JSON::PP::true : JSON::PP::false);
    $self->call('Emulation.setEmulatedMedia', features => [
        { name => 'prefers-color-scheme', value => $o{scheme} // 'light' },
    ]);
}


# the value of an expression in the page

sub eval {
    my ($self, $expression) = @_;

    my $r = $self->call('Runtime.evaluate', expression => $expression,
                        returnByValue => JSON::PP::true,
                        awaitPromise => JSON::PP::true);

    die "$expression: $r->{exceptionDetails}{text} "
        . ($r->{exceptionDetails}{exception}{description} // '') . "\n"
        if $r->{exceptionDetails};

    return $r->{result}{value};
}


# ... once it is true; undef if it never is

sub wait_for {
    my ($self, $expression, $seconds) = @_;

    my $until = time + ($seconds // $timeout);

    do {
        my $value = $self->eval($expression);

        return $value if $value;
        sleep 0.1;
    } while (time < $until);

    return undef;
}


# the whole page, or so much of it

sub screenshot {
    my ($self, $file, $height) = @_;

    my $size = $self->call('Page.getLayoutMetrics')->{cssContentSize};

    my $r = $self->call('Page.captureScreenshot', format => 'png',
                        captureBeyondViewport => JSON::PP::true,
                        clip => { x => 0, y => 0, scale => 1,
                                  width => $size->{width},
                                  height => $height // $size->{height} });

    CORE::open my $fh, '>:raw', $file or die "$file: $!\n";
    print $fh MIME::Base64::decode_base64($r->{data});
    close $fh;
}


# what the page had to say, as text

sub complaints {
    my ($self) = @_;

    $self->eval('1');                 # what was said before has come by then

    my @text;

    for my $e (@{ $self->{events} }) {
        my ($m, $p) = @$e{qw(method params)};

        next if !defined $m;

        if ($m eq 'Runtime.consoleAPICalled') {
            push @text, "console.$p->{type}: "
                        . join ' ', map { $_->{value} // '' } @{ $p->{args} };

        } elsif ($m eq 'Runtime.exceptionThrown') {
            push @text, "exception: $p->{exceptionDetails}{text} "
                        . ($p->{exceptionDetails}{exception}{description} // '');

        } elsif ($m eq 'Log.entryAdded') {
            push @text, "$p->{entry}{level}: $p->{entry}{text} "
                        . ($p->{entry}{url} // '');
        }
    }

    return @text;
}


# the addresses of everything the page asked for

sub requests {
    my ($self) = @_;

    return map { $_->{params}{request}{url} }
           grep { ($_->{method} // '') eq 'Network.requestWillBeSent' }
                @{ $self->{events} };
}

1;
