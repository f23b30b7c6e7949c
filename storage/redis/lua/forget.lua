#!lua flags=allow-oom
-- jobs(T/ID...) gone_s -> {ok | unknown | live ...}. Purges the records of terminal jobs and leaves markers: the API answers
-- 410. Callers bound the number of jobs, because nothing else runs meanwhile.
local function purge(tenant, id)
  local job = load(tenant, id)
  if not job then
    redis.call('ZREM', P .. 'finished', tenant .. '/' .. id)
    return redis.call('EXISTS', tkey(tenant, 'gone:' .. id)) == 1 and 'ok' or 'unknown'
  end
  if not has_ended(job) then return 'live' end
  local key = jobkey(job.tenant, job.id)
  for _, delivery_id in ipairs(redis.call('LRANGE', key .. ':deliveries', 0, -1)) do
    local row = table_of(redis.call('HGETALL', rowkey(job.tenant, delivery_id)))
    if row.id then forget_delivery(row) end
  end
  if job.state == 'succeeded' then count_kept(job.tenant, -(tonumber(job.bytes_out or '') or 0)) end
  redis.call('SET', tkey(job.tenant, 'gone:' .. job.id), '1', 'EX', args.gone_s)
  unlist(job)
  redis.call('ZREM', P .. 'finished', job.name)
  redis.call('ZREM', qkey(job.queue, 'dead'), job.name)
  redis.call('PUBLISH', P .. 'changes', job.name)
  redis.call('DEL', key, key .. ':events', key .. ':logs', key .. ':deliveries', key .. ':streamed')
  return 'ok'
end

local replies = {}
for _, name in ipairs(args.jobs) do replies[#replies + 1] = purge(split(name)) end
return replies
