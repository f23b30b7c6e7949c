#!lua flags=allow-oom
-- tenant id gone {id...} -> 1 | 0 where the job does not wait. Judges a job that waits for its upstreams once more, after the
-- object store was asked for those that Redis did not have. `gone` are the ones that it does not have either.
local job = load(args.tenant, args.id)
if not job or job.chained ~= '1' then return 0 end
for _, id in ipairs(args.gone) do
  if redis.call('EXISTS', jobkey(args.tenant, id)) == 0 then
    doom(job, id)
    return 1
  end
end
judge_again(job, now_us())
return 1
