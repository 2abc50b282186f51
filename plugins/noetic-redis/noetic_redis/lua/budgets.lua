-- the name, or nothing; since which period
local found
if arg(1) == '' then
    found = redis.call('ZRANGE', key('budget'), 0, -1)
else
    -- The periods of a name follow each other.
    found = redis.call('ZRANGEBYLEX', key('budget'), '[' .. arg(1) .. '\n' .. arg(2), '(' .. arg(1) .. '\11')
end
local rows = {}
for _, place in ipairs(found) do
    local name, period = string.match(place, '^([^\n]+)\n([^\n]+)$')
    local body = name and read_budget(place)
    if not body then
        fail('corrupt')
    end
    rows[#rows + 1] = {name, period, body}
end
return rows
