-- the digest of a scope, key, expected version or nothing, the scope
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
if not found then
    return refuse('none')
end
local freed = redis.call('HSTRLEN', values, arg(2))
redis.call('HDEL', heads, arg(2))
redis.call('HDEL', values, arg(2))
redis.call('ZREM', key('keys', arg(1)), arg(2))
if redis.call('EXISTS', key('keys', arg(1))) == 0 then
    redis.call('ZREM', key('scopes'), arg(4))
end
count('values', -1)
count('bytes', -freed)
return finish('ok')
