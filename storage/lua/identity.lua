#!lua flags=no-writes
-- -> {mark or false, active keeper or false}
return { redis.call('GET', P .. 'alive'), redis.call('GET', P .. 'keeper') }
