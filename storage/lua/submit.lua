#!lua
-- tenant id submission fingerprint model queue rank_offset_us ttl_us execution_us retention_us max_attempts max_crashes
-- webhook retry_of max_tenant_jobs max_queued durable(1 or '')
-- -> {created|exists, record...} | {mismatch} | {gone} | {tenant|full, jobs, speed_us, slots} | {draining}
-- Limits below 0: the job was accepted before, nothing is refused. A durable job is only reserved: it counts, but nobody claims it until `confirm` says that its manifest is stored.
local tenant, id, model, queue, durable = ARGV[1], ARGV[2], ARGV[5], ARGV[6], ARGV[17]
local existing = load(tenant, id)
if existing then
  if existing.fingerprint ~= ARGV[4] then return { 'mismatch' } end
  return { 'exists', flatten(existing) }
end
if redis.call('EXISTS', tkey(tenant, 'gone:' .. id)) == 1 then return { 'gone' } end
local limited = tonumber(ARGV[15]) >= 0
if limited and redis.call('GET', qkey(queue, 'mode')) == 'draining' then return { 'draining' } end
local now = now_us()
local function refused(why, jobs)
  return { why, jobs, redis.call('HGET', qkey(queue, 'speed'), model) or false, slots_of(queue, now) }
end
local live = redis.call('SCARD', tkey(tenant, 'live'))
if limited and live >= tonumber(ARGV[15]) then return refused('tenant', live) end
local waiting = redis.call('ZCARD', qkey(queue, 'waiting')) + redis.call('SCARD', qkey(queue, 'reserved'))
if limited and waiting >= tonumber(ARGV[16]) then return refused('full', waiting) end
local job = { name = tenant .. '/' .. id, tenant = tenant, id = id, model = model, queue = queue, revision = '0' }
write(job, {
  submission = ARGV[3], fingerprint = ARGV[4], tenant = tenant, id = id, model = model, queue = queue,
  rank = int(now - ARGV[7]), state = 'queued', phase = 'waiting', attempt = '0', crashes = '0', fence = '0',
  created_us = int(now), ttl_us = ARGV[8], execution_us = ARGV[9], retention_us = ARGV[10],
  max_attempts = ARGV[11], max_crashes = ARGV[12], webhook = ARGV[13], retry_of = ARGV[14], delivery = 'none',
  durable = durable,
})
redis.call('ZADD', tkey(tenant, 'jobs'), int(now), id)
redis.call('SADD', tkey(tenant, 'live'), id)
redis.call('SADD', P .. 'queues', queue)
if durable == '1' then
  write(job, { state = 'reserved' })
  redis.call('ZADD', P .. 'reserved', int(now), job.name)
  redis.call('SADD', qkey(queue, 'reserved'), job.name)
  return { 'created', flatten(job) }
end
expire_at(job, now + ARGV[8])
enqueue(job)
announce(job, 'job.queued', now)
emit(job, 'job.created', { model = model, queue = queue })
return { 'created', flatten(job) }
