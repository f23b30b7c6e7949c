#!lua flags=allow-oom
-- queue worker -> ok. A worker claims nothing more.
redis.call('ZREM', qkey(ARGV[1], 'seen'), ARGV[2])
redis.call('HDEL', qkey(ARGV[1], 'workers'), ARGV[2])
redis.call('ZREM', P .. 'publishers', ARGV[2])
redis.call('DEL', P .. 'published:' .. ARGV[2])
return 'ok'
