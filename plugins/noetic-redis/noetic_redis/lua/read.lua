-- run, position, how many records, how many bytes
local n, run = find(arg(1))
if not n then
    return {}
end
local log = key('log', n)
local at, room = tonumber(arg(2)), tonumber(arg(4))
local wanted = at + tonumber(arg(3))
if #redis.call('XRANGE', log, text(tonumber(run.pos) + 1), '+', 'COUNT', 1) > 0 then
    fail('corrupt')
end
local rows, blobs, seen = {}, {}, {}
local page = 4

local function take(stream, row)
    local last, fields = tonumber(string.match(row[1], '^(%d+)-0$')), row[2]
    if not last or #fields ~= 10 or fields[6] ~= checksum('log', stream, text(last), fields[2], fields[4], fields[8]) then
        fail('corrupt')
    end
    local first = last - tonumber(fields[2])
    if first > at or last <= at or (#rows > 0 and first ~= at) then
        fail('corrupt')
    end
    for digest in string.gmatch(fields[8], string.rep('%x', 64)) do
        if not seen[digest] then
            seen[digest] = true
            local data = redis.call('GET', key('blob', digest))
            if not data then
                fail('corrupt')
            end
            room = room - #data
            blobs[#blobs + 1] = digest
            blobs[#blobs + 1] = data
        end
    end
    rows[#rows + 1] = {text(last), fields[2], fields[4], fields[10]}
    room = room - #fields[10]
    -- Bodies that turn out to be large are fetched one at a time.
    page = #fields[10] > 16384 and 1 or 64
    at = last
end

for _, part in ipairs(parts_of(n, run)) do
    local stream, upto = part[1], part[2]
    while at < upto and at < wanted and room > 0 do
        local found = redis.call('XRANGE', key('log', stream), text(at + 1), text(upto), 'COUNT', page)
        if #found == 0 then
            fail('corrupt')
        end
        for _, row in ipairs(found) do
            if at < wanted and room > 0 then
                take(stream, row)
            end
        end
    end
end
return {rows, blobs}
