#!lua flags=no-writes
-- -> {flat hash of the rules' last passes, now_us, events that wait}
return { redis.call('HGETALL', P .. 'drops:passes'), int(now_us()), redis.call('ZCARD', P .. 'drops:events') }
