-- the digest of a scope, key
local found = redis.call('HGET', key('heads', arg(1)), arg(2))
if not found then
    return {}
end
local version, crc, sum = string.match(found, '^(%d+) (%d+) (%x+)$')
local value = redis.call('HGET', key('values', arg(1)), arg(2))
if not version or not value or sum ~= checksum('value', arg(1), arg(2), version, crc) then
    fail('corrupt')
end
return {version, crc, value}
