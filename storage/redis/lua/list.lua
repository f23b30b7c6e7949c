#!lua flags=no-writes
-- tenant newest oldest limit states statuses metadata {name: text}, and optionally cursor(US-ID) canceling(bool) model batch
-- -> {{{record, places or false, pace, problem or false}...}, now_us, next cursor or ''}
-- Newest first. Reads the small fields of at most 1000 jobs, and ends a page at about 4 MB of records. The caller then
-- continues at the cursor.
local tenant, limit, wanted, now = args.tenant, tonumber(args.limit), args.metadata, now_us()
local cursor_us, cursor_id = string.match(args.cursor or '', '^(%d+)-(.+)$')
local index = args.batch and bkey(tenant, args.batch, 'jobs') or tkey(tenant, 'jobs')
local states, shown, paces, problems = {}, {}, {}, {}
for _, name in ipairs(args.states) do states[name] = true end
for _, name in ipairs(args.statuses) do shown[name] = true end

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
  local state, model, cancel, completed_us, retention_us, metadata, public, parts, parts_ended = unpack(redis.call('HMGET',
    jobkey(tenant, id), 'state', 'model', 'cancel', 'completed_us', 'retention_us', 'metadata', 'shown', 'parts',
    'parts_ended'))
  -- A job whose parts run is shown as a running one.
  if has_parts({ state = state, parts = parts or nil, parts_ended = parts_ended or nil }) then state = 'running' end
  if state and not is_known(state) then
    states[state] = shown[public or ((completed_us or '') == '' and 'running' or 'failed')] or false
  end
  local job = { state = state, completed_us = completed_us, retention_us = retention_us, tenant = tenant, id = id }
  return state and states[state] and not over(job, now) and (not args.model or args.model == model)
    and (args.canceling == nil or state ~= 'running' or args.canceling == (cancel == '1')) and carries(metadata)
end

local function row(job)
  local name = job.queue .. '/' .. job.model
  local quick = has_many_lanes(job.queue, LIST_LANES)
  paces[name] = paces[name] or pace(job.queue, job.model, now, quick)
  if waits(job) and problems[name] == nil then problems[name] = obstacle(job, now) end
  return { flatten(job), places(job, quick), paces[name], waits(job) and problems[name] }
end

local found, seen, bytes, offset, place = {}, 0, 0, 0, ''
while true do
  local rows = redis.call('ZREVRANGEBYSCORE', index, args.newest, args.oldest, 'WITHSCORES', 'LIMIT', offset, 100)
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
