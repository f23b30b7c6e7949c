#!lua flags=no-writes
-- tenant newest oldest cursor(US-ID or '') limit states(JSON list) canceling('1', '0' or '') model metadata(JSON object)
-- batch(id or '')
-- -> {{{record, rank or false, pace, problem or false}...}, now_us, next cursor or ''}
-- Newest first. Looks at 1000 jobs at most, by their small fields, and ends a page at about 4 MB of records; the cursor
-- then lets the caller go on.
local tenant, limit, wanted, now = ARGV[1], tonumber(ARGV[5]), cjson.decode(ARGV[9]), now_us()
local cursor_us, cursor_id = string.match(ARGV[4], '^(%d+)-(.+)$')
local index = ARGV[10] == '' and tkey(tenant, 'jobs') or bkey(tenant, ARGV[10], 'jobs')
local states, paces, problems = {}, {}, {}
for _, name in ipairs(cjson.decode(ARGV[6])) do states[name] = true end

local function carries(text)
  if next(wanted) == nil then return true end
  if (text or '') == '' then return false end
  local own = cjson.decode(text)
  for name, value in pairs(wanted) do
    if own[name] ~= value then return false end
  end
  return true
end

local function fits(id)
  local state, model, cancel, completed_us, retention_us, metadata = unpack(redis.call('HMGET', jobkey(tenant, id),
    'state', 'model', 'cancel', 'completed_us', 'retention_us', 'metadata'))
  local job = { state = state, completed_us = completed_us, retention_us = retention_us }
  return state and states[state] and not over(job, now) and (ARGV[8] == '' or ARGV[8] == model)
    and (ARGV[7] == '' or state ~= 'running' or ARGV[7] == (cancel == '1' and '1' or '0')) and carries(metadata)
end

local function row(job)
  local name = job.queue .. '/' .. job.model
  paces[name] = paces[name] or pace(job.queue, job.model, now)
  local rank = job.state == 'queued' and redis.call('ZRANK', qkey(job.queue, 'waiting'), job.name) or false
  if problems[job.model] == nil then problems[job.model] = problem_of(job.model) end
  return { flatten(job), rank, paces[name], waits(job) and problems[job.model] }
end

local found, seen, bytes, offset, place = {}, 0, 0, 0, ''
while true do
  local rows = redis.call('ZREVRANGEBYSCORE', index, ARGV[2], ARGV[3], 'WITHSCORES', 'LIMIT', offset, 100)
  for i = 1, #rows, 2 do
    local id, us = rows[i], int(tonumber(rows[i + 1]))
    if us ~= cursor_us or id < cursor_id then
      if #found == limit or seen == 1000 or bytes > 4000000 then return { found, int(now), place } end
      seen, place = seen + 1, us .. '-' .. id
      if fits(id) then
        local job = load(tenant, id)
        found[#found + 1] = row(job)
        bytes = bytes + #job.submission + #(job.text or '') + #(job.data or '')
      end
    end
  end
  if #rows < 200 then return { found, int(now), '' } end
  offset = offset + 100
end
