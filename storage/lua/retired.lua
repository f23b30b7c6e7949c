#!lua flags=no-writes
-- limit -> T/ID of terminal jobs whose retention is over: delete their objects, then forget them
return redis.call('ZRANGEBYSCORE', P .. 'finished', '-inf', int(now_us()), 'LIMIT', 0, tonumber(ARGV[1]))
