#!lua
-- tenant id submission fingerprint model queue rank_offset_us ttl_us execution_us retention_us max_attempts max_crashes
-- webhook retry_of max_tenant_jobs max_queued -> {created|exists, record...} | {mismatch} | {gone} | {tenant, live} |
-- {full, waiting}
local tenant, id, model, queue = ARGV[1], ARGV[2], ARGV[5], ARGV[6]
local existing = load(tenant, id)
if existing then
  if existing.fingerprint ~= ARGV[4] then return { 'mismatch' } end
  return { 'exists', flatten(existing) }
end
if redis.call('EXISTS', tkey(tenant, 'gone:' .. id)) == 1 then return { 'gone' } end
local live = redis.call('SCARD', tkey(tenant, 'live'))
if live >= tonumber(ARGV[15]) then return { 'tenant', live } end
local waiting = redis.call('ZCARD', qkey(queue, 'waiting'))
if waiting >= tonumber(ARGV[16]) then
  return { 'full', waiting, redis.call('HGET', qkey(queue, 'speed'), model) or false,
    redis.call('ZCARD', qkey(queue, 'seen')) }
end
local now = now_us()
local job = { name = tenant .. '/' .. id, tenant = tenant, id = id, model = model, queue = queue, revision = '0' }
write(job, {
  submission = ARGV[3], fingerprint = ARGV[4], tenant = tenant, id = id, model = model, queue = queue,
  rank = int(now - ARGV[7]), state = 'queued', phase = 'waiting', attempt = '0', crashes = '0', fence = '0',
  created_us = int(now), ttl_us = ARGV[8], execution_us = ARGV[9], retention_us = ARGV[10],
  max_attempts = ARGV[11], max_crashes = ARGV[12], webhook = ARGV[13], retry_of = ARGV[14], delivery = 'none',
})
redis.call('ZADD', tkey(tenant, 'jobs'), int(now), id)
redis.call('SADD', tkey(tenant, 'live'), id)
redis.call('SADD', P .. 'queues', queue)
redis.call('ZADD', P .. 'expiring', int(now + ARGV[8]), job.name)
enqueue(job)
announce(job, 'job.queued', now)
emit(job, 'job.created', { model = model, queue = queue })
return { 'created', flatten(job) }
