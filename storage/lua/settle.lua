#!lua flags=allow-oom
-- tenant delivery tries outcome(delivered|failed|pending) delay_us note(JSON) body -> ok | stale
-- The result of one try. A try that was overtaken by a later one changes nothing.
local key = tkey(ARGV[1], 'delivery:' .. ARGV[2])
if redis.call('HGET', key, 'tries') ~= ARGV[3] or redis.call('HGET', key, 'state') ~= 'pending' then return 'stale' end
local now = now_us()
local log = redis.call('HGET', key, 'log')
log = log == '[]' and '[' .. ARGV[6] .. ']' or string.sub(log, 1, -2) .. ',' .. ARGV[6] .. ']'
redis.call('HSETNX', key, 'body', ARGV[7])
redis.call('HSET', key, 'log', log, 'state', ARGV[4])
local name = ARGV[1] .. '/' .. ARGV[2]
if ARGV[4] == 'pending' then
  redis.call('ZADD', P .. 'outbox', int(now + ARGV[5]), name)
else
  redis.call('ZREM', P .. 'outbox', name)
end
local job = load(ARGV[1], redis.call('HGET', key, 'job'))
if not job then return 'ok' end
local all = 'delivered'
for _, id in ipairs(redis.call('LRANGE', jobkey(job.tenant, job.id) .. ':deliveries', 0, -1)) do
  local state = redis.call('HGET', tkey(job.tenant, 'delivery:' .. id), 'state')
  if state == 'failed' or (state == 'pending' and all ~= 'failed') then all = state end
end
if job.delivery ~= all then write(job, { delivery = all }) end
emit(job, 'delivery.' .. ARGV[4], ARGV[6])
return 'ok'
