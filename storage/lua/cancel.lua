#!lua flags=allow-oom
-- tenant id -> record | false. Waiting jobs end at once, running ones when their worker sees it or their lease ends.
local job = load(ARGV[1], ARGV[2])
if not job then return redis.call('EXISTS', tkey(ARGV[1], 'gone:' .. ARGV[2])) end
if job.state == 'queued' or job.state == 'delayed' then
  finish(job, 'canceled', {}, now_us())
elseif job.state == 'running' and job.cancel ~= '1' then
  write(job, { cancel = '1' })
  emit(job, 'job.cancel_requested', {})
end
return flatten(job)
