#!lua flags=allow-oom
-- queue tenant id -> 1 if the job was among the queue's dead letters and no longer is
return redis.call('ZREM', qkey(ARGV[1], 'dead'), ARGV[2] .. '/' .. ARGV[3])
