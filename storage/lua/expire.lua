#!lua flags=allow-oom
-- tenant id error -> {record, proposal or false} | 0 unknown | 1 gone. As cancel, but a waiting job ends as expired. The
-- caller asks again until the end is committed.
local job, missing = find(ARGV[1], ARGV[2])
if not job then return missing end
if TERMINAL[job.state] then return { flatten(job), false } end
if job.state ~= 'running' then
  local proposal = finish(job, 'expired', { error = ARGV[3] }, now_us())
  return { flatten(job), proposal or false }
end
if job.cancel ~= '1' then
  write(job, { cancel = '1' })
  emit(job, 'job.cancel_requested', {})
end
return { flatten(job), false }
