#!lua flags=no-writes
-- -> {flat hash of what `drop_pass` wrote, now_us, events that wait}
return { redis.call('HGETALL', P .. 'drops:passes'), int(now_us()), redis.call('ZCARD', P .. 'drops:events') }
