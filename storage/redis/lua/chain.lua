-- Chains: a job with `after` waits until the jobs that it names there, its upstreams, have succeeded. It is their follower.
--
-- penstock:tenant:T:job:ID:followers   zset    ids of the job's followers: 1 for a live one, 0 for one that has ended
-- penstock:chained                     zset    T/ID of the jobs that wait for upstreams, by the time at which `sweep` looks
--
-- A job that waits for upstreams is `delayed` and has `chained` = '1'; it stands in no other index of waiting jobs. The
-- script that ends an upstream judges its followers at once: it queues a follower whose upstreams have all succeeded, and
-- dooms one of which an upstream has ended otherwise. `sweep` ends the doomed ones, and judges those of which an upstream
-- was ended by an older release. `claim` judges once more: no follower runs before its upstreams have succeeded. Redis
-- may lack an upstream after it was emptied: then the follower waits until the object store was asked (`follow`).

-- Microseconds after which `sweep` looks at a waiting follower again.
local LOOK_AGAIN_US = 60000000

local function chain_of(job) return string.gmatch(job.after or '', '%S+') end

-- Return `ready`; `waits` and the ids of the upstreams that have not ended; `doomed`, and the id and state of an upstream
-- that did not succeed; or `unsure` and the ids of the upstreams that Redis does not have.
local function judge(job)
  local live, missing = {}, {}
  for id in chain_of(job) do
    local state = redis.call('HGET', jobkey(job.tenant, id), 'state')
    if not state then
      missing[#missing + 1] = id
    elseif TERMINAL[state] and state ~= 'succeeded' then
      return 'doomed', id, state
    elseif state ~= 'succeeded' then
      live[#live + 1] = id
    end
  end
  if #missing > 0 then return 'unsure', missing end
  if #live > 0 then return 'waits', live end
  return 'ready'
end

-- Have a job wait for its upstreams; return false where it need not wait.
local function chained(job, now)
  local verdict, ids, state = judge(job)
  if verdict == 'ready' then return false end
  local fields, at = {}, now + LOOK_AGAIN_US
  if verdict == 'doomed' then
    fields.doomed, fields.message = ids .. ' ' .. state, 'waits for job ' .. ids
    at = 0
  else
    if verdict == 'unsure' then at = now end
    fields.message = 'waits for job ' .. ids[1] .. (#ids > 1 and ' and ' .. #ids - 1 .. ' more' or '')
  end
  if job.chained ~= '1' then fields.chained, fields.state, fields.phase = '1', 'delayed', 'waiting' end
  if fields.state or fields.doomed or fields.message ~= job.message then
    write(job, fields)
    redis.call('PUBLISH', P .. 'changes', job.name)
  end
  redis.call('ZADD', P .. 'chained', int(at), job.name)
  redis.call('ZREM', P .. 'expiring', job.name)
  if job.cancel == '1' then expire_at(job, 0) end
  return true
end

-- Put a job that was accepted into its queue, or have it wait for its upstreams.
local function admit(job, now)
  if (job.after or '') ~= '' and chained(job, now) then return end
  enqueue(job)
  expire_at(job, now + job.ttl_us)
end

-- Judge a job that waits for its upstreams: queue it where it need not wait any more. Return true where it was queued.
local function judge_again(job, now)
  if job.chained ~= '1' or job.state ~= 'delayed' then
    redis.call('ZREM', P .. 'chained', job.name)
    return false
  end
  if chained(job, now) then return false end
  redis.call('ZREM', P .. 'chained', job.name)
  requeue(job, { chained = '' }, 'job.requeued', { reason = 'upstreams' }, now)
  return true
end

-- Doom a waiting follower whose upstream is gone: it was deleted, or lost.
local function doom(job, id)
  if job.chained ~= '1' then return end
  write(job, { doomed = id .. ' gone' })
  redis.call('ZADD', P .. 'chained', '0', job.name)
end

-- Note a new follower at its upstreams, whose documents list it, or its end.
local function note_follower(job, live)
  for id in chain_of(job) do
    redis.call('ZADD', followers_key(job.tenant, id), live and '1' or '0', job.id)
    local revision = live and redis.call('HGET', jobkey(job.tenant, id), 'revision')
    if revision then
      write({ tenant = job.tenant, id = id, revision = revision }, {})
      redis.call('PUBLISH', P .. 'changes', job.tenant .. '/' .. id)
    end
  end
end

local function forget_follower(job)
  for id in chain_of(job) do redis.call('ZREM', followers_key(job.tenant, id), job.id) end
end

-- Return nil where a job may follow its upstreams, and their number in the longest chain up to it; or why it may not:
-- {upstream, id} without such a job, {followers, id} where one has too many, {depth} of a chain that is too long.
local function check_chain(job, now, max_followers, max_depth)
  local depth = 0
  for id in chain_of(job) do
    local state, parent, completed_us, retention_us, own_depth = unpack(redis.call('HMGET', jobkey(job.tenant, id), 'state',
      'parent', 'completed_us', 'retention_us', 'depth'))
    local ended = { tenant = job.tenant, id = id, state = state, completed_us = completed_us or nil, retention_us = retention_us }
    if not state or state == 'reserved' or (parent or '') ~= '' or over(ended, now) then return { 'upstream', id } end
    if redis.call('ZCARD', followers_key(job.tenant, id)) >= max_followers then return { 'followers', id } end
    depth = math.max(depth, 1 + (tonumber(own_depth or '') or 0))
  end
  if depth > max_depth then return { 'depth' } end
  return nil, int(depth)
end

-- Return the artifacts (JSON) of a job's upstreams by id; nil for a job without upstreams.
local function results_of(job)
  if (job.after or '') == '' then return nil end
  local found = {}
  for id in chain_of(job) do found[id] = redis.call('HGET', jobkey(job.tenant, id), 'artifacts') or '[]' end
  return found
end

function end_in_chains(job, now)
  note_follower(job, false)
  redis.call('ZREM', P .. 'chained', job.name)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', followers_key(job.tenant, job.id), '1', '1')) do
    local follower = load(job.tenant, id)
    if follower then judge_again(follower, now) end
  end
end
