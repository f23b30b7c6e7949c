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
  purge_record(job)
  return 'ok'
end

local replies = {}
for _, name in ipairs(args.jobs) do replies[#replies + 1] = purge(split(name)) end
return replies
