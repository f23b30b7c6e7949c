#!lua flags=allow-oom
-- tenant delivery body -> the body that every try sends: that of the first caller | false unknown
local key = rowkey(ARGV[1], ARGV[2])
if redis.call('EXISTS', key) == 0 then return false end
redis.call('HSETNX', key, 'body', ARGV[3])
return redis.call('HGET', key, 'body')
