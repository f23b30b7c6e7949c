#!lua flags=allow-oom
-- tenant id delete(1 or 0) -> {record, proposal or false, lasting(1 or 0)} | 0 unknown | 1 gone. Waiting jobs end at once, running ones when their worker
-- sees it or their lease ends; one to be deleted is then kept no longer. Where the end is only proposed, the keeper proposes it again until it is committed.
-- `lasting`: the job runs on for now, and is one whose end an emptied Redis must not forget to have been asked for.
local job, missing = find(ARGV[1], ARGV[2])
if not job then return missing end
if TERMINAL[job.state] then return { flatten(job), false, 0 } end
if ARGV[3] == '1' and job.retention_us ~= '0' then write(job, { retention_us = '0' }) end
local proposal = job.state ~= 'running' and finish(job, 'canceled', {}, now_us()) or false
if not TERMINAL[job.state] then
  if job.cancel ~= '1' then
    write(job, { cancel = '1' })
    if job.state == 'running' then emit(job, 'job.cancel_requested', {}) end
  end
  if proposal then expire_at(job, 0) end
end
return { flatten(job), proposal, job.durable == '1' and job.state == 'running' and 1 or 0 }
