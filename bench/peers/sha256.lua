-- Copyright (C) the contributors of ngx_http_idempotency_module
-- SPDX-License-Identifier: BSD-2-Clause

-- SHA-256 in base64, by the OpenSSL that nginx is linked with: what
-- resty.sha256 does, which Debian does not have.

local ffi = require "ffi"

ffi.cdef[[
unsigned char *SHA256(const unsigned char *d, size_t n, unsigned char *md);
]]

local digest = ffi.new("unsigned char[32]")

return function(text)
    ffi.C.SHA256(text, #text, digest)

    return ngx.encode_base64(ffi.string(digest, 32))
end
