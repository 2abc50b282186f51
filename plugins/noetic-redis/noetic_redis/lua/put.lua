-- the digest of a scope, key, expected version or nothing, crc of the value, value, the scope
local done = settled()
if done then
    return done
end
local heads, values = key('heads', arg(1)), key('values', arg(1))
local found = redis.call('HGET', heads, arg(2))
local there = found and string.match(found, '^%d+') or '0'
if arg(3) ~= '' and arg(3) ~= there then
    return refuse('version', there)
end
local grown = #arg(5) - redis.call('HSTRLEN', values, arg(2))
local version = text(redis.call('HINCRBY', store, 'ticks', 1))
redis.call('HSET', heads, arg(2), version .. ' ' .. arg(4) .. ' ' .. checksum('value', arg(1), arg(2), version, arg(4)))
redis.call('HSET', values, arg(2), arg(5))
if not found then
    redis.call('ZADD', key('keys', arg(1)), 0, arg(2))
    count('values', 1)
end
redis.call('ZADD', key('scopes'), 0, arg(6))
count('bytes', grown)
return finish('ok', version)
