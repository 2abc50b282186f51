-- Makes the store if it is not there; says of which version it is, and where its checksums begin.
local store, base, version, salt = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local found = redis.call('HMGET', store, 'version', 'salt')
if not found[1] or not found[2] then
    if redis.call('EXISTS', base .. 'ids', base .. 'runs', base .. 'used') > 0 then
        error('noetic:corrupt', 0)
    end
    redis.call('HSET', store, 'version', version, 'salt', salt)
    return {version, salt}
end
if found[1] == '1' or found[1] == '2' or found[1] == '3' then
    -- Its queues have no keys yet, or it has no shared budgets or no queues either, and is otherwise the same; an earlier
    -- release would not keep them in order.
    redis.call('HSET', store, 'version', version)
    return {version, found[2]}
end
return found
