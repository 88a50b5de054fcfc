-- Copyright (C) the contributors of ngx_http_idempotency_module
-- SPDX-License-Identifier: BSD-2-Clause

-- An idempotency key with the lua module alone: the record is in a shared
-- dict, the body counts by its SHA-256, the application is asked with a
-- subrequest.  As a user of the lua module would write it.

local cjson = require "cjson.safe"
local sha256 = require "sha256"

local records = ngx.shared.records
local key = ngx.req.get_headers()["Idempotency-Key"]

if not key then
    return ngx.exec("/app")
end

ngx.req.read_body()

local id = ngx.var.host .. ":" .. key
local fingerprint = sha256(ngx.req.get_method() .. ngx.var.request_uri
                           .. (ngx.req.get_body_data() or ""))

local lock = cjson.encode({ fingerprint = fingerprint })
local new, err = records:add(id, lock, 30)

if not new then
    local found = cjson.decode(records:get(id) or "")

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

records:set(id, cjson.encode({ fingerprint = fingerprint,
                               status = answer.status,
                               header = answer.header,
                               body = answer.body }), 86400)

ngx.status = answer.status
for name, value in pairs(answer.header) do
    ngx.header[name] = value
end
ngx.print(answer.body)
