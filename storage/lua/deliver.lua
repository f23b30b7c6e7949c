#!lua flags=allow-oom
-- n lease_us -> list of {delivery, record}: due webhook deliveries, leased to the caller for its try.
local now, rows = now_us(), {}
for _, name in ipairs(redis.call('ZRANGEBYSCORE', P .. 'outbox', '-inf', int(now), 'LIMIT', 0, tonumber(ARGV[1]))) do
  local tenant, id = split(name)
  local key = tkey(tenant, 'delivery:' .. id)
  local job = load(tenant, redis.call('HGET', key, 'job') or '')
  if job and redis.call('HGET', key, 'state') == 'pending' then
    redis.call('HINCRBY', key, 'tries', 1)
    redis.call('ZADD', P .. 'outbox', int(now + ARGV[2]), name)
    rows[#rows + 1] = { redis.call('HGETALL', key), flatten(job) }
  else
    redis.call('ZREM', P .. 'outbox', name)
  end
end
return rows
