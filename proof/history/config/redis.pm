# One Redis with an append-only file.

package config::redis;

use strict;
use warnings;
use parent 'RedisStore';


return __PACKAGE__;
