#!lua flags=allow-oom
-- All that Redis keeps of a tenant, in bounded steps: `args.op` names one. No key of another tenant begins with
-- `penstock:tenant:T:`, because a tenant's name has no colon.
local ops = {}
local tenant = args.tenant

-- Indexes of all tenants by their kind, with members T/..., or T itself, or M/T.
local ZSETS = { 'batches', 'batches:finished', 'reserved', 'leases', 'deadlines', 'delayed', 'expiring', 'finished',
  'chained', 'usage:days', 'endpoints:changing', 'outbox', 'outbox:tenants', 'unannounced', 'spans:ended' }
local QUEUE_ZSETS, QUEUE_SETS = { 'waiting', 'lanes', 'names', 'dead' }, { 'reserved', 'running' }

-- Return true for T, T/..., and M/T of `lanes` and `names`.
local function names(member)
  if string.match(args.key, ':lanes$') or string.match(args.key, ':names$') then return string.match(member, '/([^/]+)$') == tenant end
  return string.match(member, '^[^/]+') == tenant
end

-- cursor -> {cursor, {key...}}: keys of the tenant, and replies of claims that name it
function ops.keys()
  local page = redis.call('SCAN', args.cursor, 'MATCH', P .. '*', 'COUNT', 1000)
  local found, prefix = {}, P .. 'tenant:' .. tenant .. ':'
  for _, key in ipairs(page[2]) do
    local is_own = string.sub(key, 1, #prefix) == prefix or string.find(key, P .. 'dry:' .. tenant .. '/', 1, true) == 1
    local lane = string.match(key, '^penstock:queue:.+:lane:.+/([^/]+)$') == tenant
    if not (is_own or lane) and string.sub(key, 1, #P + 6) == P .. 'claim:' then
      is_own = string.find(redis.call('GET', key) or '', '\\"tenant\\":\\"' .. tenant .. '\\"', 1, true) ~= nil
    end
    if is_own or lane then found[#found + 1] = key end
  end
  return { page[1], found }
end

-- -> {{key, zset|set}...}: the indexes of all tenants
function ops.indexes()
  local found = {}
  for _, name in ipairs(ZSETS) do found[#found + 1] = { P .. name, 'zset' } end
  for _, queue in ipairs(redis.call('SMEMBERS', P .. 'queues')) do
    for _, name in ipairs(QUEUE_ZSETS) do found[#found + 1] = { qkey(queue, name), 'zset' } end
    for _, name in ipairs(QUEUE_SETS) do found[#found + 1] = { qkey(queue, name), 'set' } end
  end
  return found
end

-- key kind cursor -> {cursor, {member...}}: the tenant's members of an index
function ops.members()
  local scan, step = args.kind == 'zset' and 'ZSCAN' or 'SSCAN', args.kind == 'zset' and 2 or 1
  local page, found = redis.call(scan, args.key, args.cursor, 'MATCH', '*' .. tenant .. '*', 'COUNT', 1000), {}
  for i = 1, #page[2], step do
    if names(page[2][i]) then found[#found + 1] = page[2][i] end
  end
  return { page[1], found }
end

-- keys -> number of deleted keys
function ops.delete()
  local n = 0
  for _, key in ipairs(args.keys) do n = n + redis.call('DEL', key) end
  return n
end

-- key kind members -> number of removed members
function ops.remove()
  local n = 0
  for _, member in ipairs(args.members) do n = n + redis.call(args.kind == 'zset' and 'ZREM' or 'SREM', args.key, member) end
  return n
end

-- key -> {type, value}: a key as it is
function ops.dump()
  local kind = redis.call('TYPE', args.key).ok
  local read = { hash = { 'HGETALL' }, string = { 'GET' }, set = { 'SMEMBERS' }, list = { 'LRANGE', 0, -1 },
    zset = { 'ZRANGE', 0, -1, 'WITHSCORES' }, stream = { 'XRANGE', '-', '+' } }
  local how = read[kind]
  if not how then return { kind, false } end
  return { kind, redis.call(how[1], args.key, unpack(how, 2)) }
end

-- -> {job id...}: jobs that have not ended, at most `limit`
function ops.live() return redis.call('SRANDMEMBER', tkey(tenant, 'live'), args.limit) end

-- -> {job id...}: the oldest jobs, at most `limit`
function ops.jobs() return redis.call('ZRANGE', tkey(tenant, 'jobs'), 0, args.limit - 1) end

-- -> {batch id...}
function ops.batches() return redis.call('ZRANGE', tkey(tenant, 'batches'), 0, -1) end

return ops[args.op]()
