#!lua flags=allow-oom
-- tenant id -> {record, proposal or false} | 0 unknown | 1 gone. Waiting jobs end at once, running ones when their worker
-- sees it or their lease ends. Where the end is only proposed, the keeper proposes it again until it is committed.
local job = load(ARGV[1], ARGV[2])
if not job then return redis.call('EXISTS', tkey(ARGV[1], 'gone:' .. ARGV[2])) end
if TERMINAL[job.state] then return { flatten(job), false } end
local proposal = job.state ~= 'running' and finish(job, 'canceled', {}, now_us()) or false
if not TERMINAL[job.state] then
  if job.cancel ~= '1' then
    write(job, { cancel = '1' })
    if job.state == 'running' then emit(job, 'job.cancel_requested', {}) end
  end
  if proposal then expire_at(job, 0) end
end
return { flatten(job), proposal }
