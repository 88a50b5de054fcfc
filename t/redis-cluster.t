use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';
run_tests();
__DATA__

=== TEST 1: x
--- store: redis
--- config
    location / {
        idempotency  $TEST_STORE;
        add_header X-Record $idempotency_record always;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $other = start_host();
my $load = start_load(ports => [$port, $other->{port}]);
Time::HiRes::sleep(2);
my $r = check_load($load, $other);
diag(JSON::PP->new->canonical->encode({%$r, first=>0}));
