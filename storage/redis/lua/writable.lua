#!lua
-- -> ok. Redis refuses this script, as every one that may write and is not marked `allow-oom`, while it accepts no writes.
return 'ok'
