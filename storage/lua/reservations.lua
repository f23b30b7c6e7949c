#!lua flags=no-writes
-- age_us limit -> T/ID of reservations that nobody confirmed for so long
return redis.call('ZRANGEBYSCORE', P .. 'reserved', '-inf', int(now_us() - ARGV[1]), 'LIMIT', 0, tonumber(ARGV[2]))
