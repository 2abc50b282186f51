-- the beginning of scopes, behind which scope or nothing, how many
local first = arg(2) ~= '' and '(' .. arg(2) or arg(1) ~= '' and '[' .. arg(1) or '-'
return redis.call('ZRANGEBYLEX', key('scopes'), first, '+', 'LIMIT', 0, arg(3))
