#!lua flags=allow-oom
-- rule|"queue ADDRESS" pass(JSON) -> 1
-- What a rule's listing found, or what keeps the keeper from hearing a queue, and when by this clock.
redis.call('HSET', P .. 'drops:passes', ARGV[1], ARGV[2], ARGV[1] .. ' at_us', int(now_us()))
return 1
