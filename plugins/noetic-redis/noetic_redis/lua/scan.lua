-- the digest of a scope, behind which key, how many, how many bytes
local after = arg(2) == '' and '-' or '(' .. arg(2)
local rows, room = {}, tonumber(arg(4))
for _, name in ipairs(redis.call('ZRANGEBYLEX', key('keys', arg(1)), after, '+', 'LIMIT', 0, arg(3))) do
    local found = redis.call('HGET', key('heads', arg(1)), name)
    local version, crc, sum = string.match(found or '', '^(%d+) (%d+) (%x+)$')
    local value = redis.call('HGET', key('values', arg(1)), name)
    if not version or not value or sum ~= checksum('value', arg(1), name, version, crc) then
        fail('corrupt')
    end
    rows[#rows + 1] = {name, version, crc, value}
    room = room - #value
    if room <= 0 then
        break
    end
end
return rows
