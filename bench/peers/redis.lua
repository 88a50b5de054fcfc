-- Copyright (C) the contributors of ngx_http_idempotency_module
-- SPDX-License-Identifier: BSD-2-Clause

-- An idempotency key with the lua module and Redis, through lua-resty-redis:
-- Debian has it as nginx.redis, in the package lua-nginx-redis.  As a user of
-- the two would write it.

local cjson = require "cjson.safe"
local redis = require "nginx.redis"
local sha256 = require "sha256"

local key = ngx.req.get_headers()["Idempotency-Key"]

if not key then
    return ngx.exec("/app")
end

ngx.req.read_body()

local id = ngx.var.host .. ":" .. key
local fingerprint = sha256(ngx.req.get_method() .. ngx.var.request_uri
                           .. (ngx.req.get_body_data() or ""))

local r = redis:new()
r:set_timeout(1000)

if not r:connect("127.0.0.1", tonumber(ngx.var.redis_port)) then
    return ngx.exit(503)
end

local lock = cjson.encode({ fingerprint = fingerprint })
local new, err = r:set(id, lock, "NX", "EX", 30)

if err then
    return ngx.exit(503)
end

if new == ngx.null then
    local text = r:get(id)
    r:set_keepalive(60000, 100)

    local found = text ~= ngx.null and cjson.decode(text or "")

    if not found then
        return ngx.exit(503)
    elseif found.fingerprint ~= fingerprint or not found.status then
        return ngx.exit(409)
    end

    ngx.status = found.status
    for name, value in pairs(found.header) do
        ngx.header[name] = value
    end
    ngx.header["Idempotent-Replayed"] = "true"
    ngx.print(found.body)
    return ngx.exit(ngx.OK)
end

local answer = ngx.location.capture("/app", { method = ngx.HTTP_POST,
                                              always_forward_body = true })

r:set(id, cjson.encode({ fingerprint = fingerprint,
                         status = answer.status,
                         header = answer.header,
                         body = answer.body }),
      "EX", 86400)
r:set_keepalive(60000, 100)

ngx.status = answer.status
for name, value in pairs(answer.header) do
    ngx.header[name] = value
end
ngx.print(answer.body)
