#!lua
-- tenant endpoint nonce -> now_us. A change of an endpoint begins: the keeper looks after it if it never ends.
local now = int(now_us())
redis.call('ZADD', P .. 'endpoints:changing', now, ARGV[1] .. '/' .. ARGV[2] .. '/' .. ARGV[3])
return now
