#!lua flags=no-writes
-- tenant delivery -> {{delivery}} | 2 unknown
if redis.call('EXISTS', rowkey(ARGV[1], ARGV[2])) == 0 then return 2 end
return { { delivery(ARGV[1], ARGV[2], now_us()) } }
