#!lua flags=allow-oom
-- tenant id gone_s -> ok | unknown | live. Purges a terminal job's record and leaves a marker for 410.
local job = load(ARGV[1], ARGV[2])
if not job then return redis.call('EXISTS', tkey(ARGV[1], 'gone:' .. ARGV[2])) == 1 and 'ok' or 'unknown' end
if not TERMINAL[job.state] then return 'live' end
local key = jobkey(job.tenant, job.id)
for _, id in ipairs(redis.call('LRANGE', key .. ':deliveries', 0, -1)) do
  local row = table_of(redis.call('HGETALL', rowkey(job.tenant, id)))
  if row.id then forget_delivery(row) end
end
redis.call('SET', tkey(job.tenant, 'gone:' .. job.id), '1', 'EX', ARGV[3])
unlist(job)
redis.call('ZREM', P .. 'finished', job.name)
redis.call('ZREM', qkey(job.queue, 'dead'), job.name)
redis.call('PUBLISH', P .. 'changes', job.name)
redis.call('DEL', key, key .. ':events', key .. ':deliveries')
return 'ok'
