#!lua flags=no-writes
-- -> {ended, tries, phases (flat hashes), bounds_ms, webhooks that wait, queues, events of buckets (flat hash), those that wait, look-ups in caches (flat hash),
-- us since the oldest purge was due, sums of usage (flat hash), lost leases, retried attempts, times of workers (flat hashes),
-- 1 with an active keeper, us since the latest sweep or false, bytes of Redis, their limit or 0}
-- Of the webhooks that wait, those that are due stand in the lanes of their receivers (deliver.lua).
local waiting = redis.call('ZCARD', P .. 'outbox')
for _, tenant in ipairs(redis.call('ZRANGE', P .. 'outbox:tenants', 0, -1)) do
  for _, receiver in ipairs(redis.call('ZRANGE', tkey(tenant, 'receivers'), 0, -1)) do
    waiting = waiting + redis.call('ZCARD', receiver_key(tenant, receiver, 'due'))
  end
end
local lag, now = 0, now_us()
for _, index in ipairs({ 'finished', 'batches:finished' }) do
  local oldest = redis.call('ZRANGE', P .. index, 0, 0, 'WITHSCORES')[2]
  if oldest then lag = math.max(lag, now - oldest) end
end
local swept, memory = redis.call('GET', P .. 'swept'), redis.call('INFO', 'memory')
local function bytes(name) return tonumber(string.match(memory, '\n' .. name .. ':(%d+)') or '0') end
return { redis.call('HGETALL', P .. 'counts:ended'), redis.call('HGETALL', P .. 'counts:tries'),
  redis.call('HGETALL', P .. 'counts:phases'), BOUNDS_MS, waiting,
  redis.call('SMEMBERS', P .. 'queues'), redis.call('HGETALL', P .. 'counts:drops'),
  redis.call('ZCARD', P .. 'drops:events'), redis.call('HGETALL', P .. 'counts:cache'),
  int(lag), redis.call('HGETALL', P .. 'counts:used'), redis.call('HGETALL', P .. 'counts:lost'),
  redis.call('HGETALL', P .. 'counts:retried'), redis.call('HGETALL', P .. 'counts:workers'), redis.call('EXISTS', P .. 'keeper'),
  swept and int(now - swept), bytes('used_memory'), bytes('maxmemory') }
