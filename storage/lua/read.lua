#!lua flags=no-writes
-- tenant id -> {record, now_us, rank, speed_us, slots, running} | 0 unknown | 1 gone
local job = load(ARGV[1], ARGV[2])
if not job then return redis.call('EXISTS', tkey(ARGV[1], 'gone:' .. ARGV[2])) end
local now = now_us()
local rank = job.state == 'queued' and redis.call('ZRANK', qkey(job.queue, 'waiting'), job.name) or false
return { flatten(job), int(now), rank, redis.call('HGET', qkey(job.queue, 'speed'), job.model), slots_of(job.queue, now),
  redis.call('SCARD', qkey(job.queue, 'running')) }
