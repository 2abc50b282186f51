-- names and periods, as fields of the hash of rows
for index = 1, #ARGV - 6 do
    local place = arg(index)
    local body = read_budget(place)
    if body and not next(cjson.decode(body).held) then
        redis.call('HDEL', key('budgets'), place)
        redis.call('ZREM', key('budget'), place)
    end
end
return {}
