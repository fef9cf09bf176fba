-- Move the ids that are due from the sorted set to the ready list.
-- KEYS[1]  ns:{queue}:delayed:P     KEYS[2]  ns:{queue}:ready:P
-- ARGV[1]  now, epoch ms            ARGV[2]  most ids to move (1..4000)
-- answer   how many were moved
-- Atomic. The push comes before the removal: at maxmemory the first write is the one that is refused, and the script
-- ends there with nothing changed. Run twice it moves the next ids, never one twice.
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])
if #due == 0 then
  return 0
end
redis.call('LPUSH', KEYS[2], unpack(due))
redis.call('ZREM', KEYS[1], unpack(due))
return #due
