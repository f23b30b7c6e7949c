#!lua flags=allow-oom
-- queue mode(open|paused|draining) -> ok
if ARGV[2] == 'open' then
  redis.call('DEL', qkey(ARGV[1], 'mode'))
else
  redis.call('SET', qkey(ARGV[1], 'mode'), ARGV[2])
end
return 'ok'
