#!lua
-- tenant id fence at length data -> 1 told | 0 not held. The piece at a place is told once: a lost reply is asked again.
local job = held(ARGV[1], ARGV[2], ARGV[3])
if not job then return 0 end
local fence, said = string.match(job.said or '', '^(%d+):(%d+)$')
if fence ~= ARGV[3] then said = '0' end
if tonumber(ARGV[4]) >= tonumber(said) then
  write(job, { said = ARGV[3] .. ':' .. int(ARGV[4] + ARGV[5]) })
  emit(job, 'job.text', ARGV[6])
end
return 1
