-- Verifies AWS Signature Version 4 in the header of a request without a body, for one key. libcrypto, which nginx is linked with,
-- is called through LuaJIT's FFI; the signing key of a day is derived once.

local ffi = require "ffi"
local bit = require "bit"

ffi.cdef [[
const void *EVP_sha256(void);
unsigned char *SHA256(const char *data, size_t length, unsigned char *digest);
unsigned char *HMAC(const void *kind, const char *key, int key_length, const char *data, size_t length,
                    unsigned char *digest, unsigned int *digest_length);
]]

local ACCESS_KEY, SECRET_KEY = "@ACCESS_KEY@", "@SECRET_KEY@"
local MOST_SECONDS = 900
local digest, sha256 = ffi.new("unsigned char[32]"), ffi.C.EVP_sha256()
local hex = {}
for byte = 0, 255 do
  hex[byte] = string.format("%02x", byte)
end

local function hmac(key, data)
  ffi.C.HMAC(sha256, key, #key, data, #data, digest, nil)
  return ffi.string(digest, 32)
end

local function in_hex()
  local digits = {}
  for index = 0, 31 do
    digits[index + 1] = hex[digest[index]]
  end
  return table.concat(digits)
end

local signing_keys = {}
local function signing_key(scope, date, region, service)
  if not signing_keys[scope] then
    signing_keys[scope] = hmac(hmac(hmac(hmac("AWS4" .. SECRET_KEY, date), region), service), "aws4_request")
  end
  return signing_keys[scope]
end

local offset = os.time(os.date("!*t", 86400)) - 86400
local seconds = { text = "" }
local function seconds_of(text)
  if seconds.text ~= text then
    local year, month, day, hour, minute, second = text:match("^(%d%d%d%d)(%d%d)(%d%d)T(%d%d)(%d%d)(%d%d)Z$")
    if not year then
      return nil
    end
    local parts = { year = year, month = month, day = day, hour = hour, min = minute, sec = second, isdst = false }
    seconds = { text = text, value = os.time(parts) - offset }
  end
  return seconds.value
end

local function canonical_query(query)
  local pairs_of = {}
  for pair in query:gmatch("[^&]+") do
    pairs_of[#pairs_of + 1] = pair:find("=", 1, true) and pair or pair .. "="
  end
  table.sort(pairs_of)
  return table.concat(pairs_of, "&")
end

local function same(left, right)
  if #left ~= #right then
    return false
  end
  local difference = 0
  for index = 1, #left do
    difference = bit.bor(difference, bit.bxor(left:byte(index), right:byte(index)))
  end
  return difference == 0
end

local function is_signed()
  local var = ngx.var
  local key, scope, names, signature = (var.http_authorization or ""):match(
    "^AWS4%-HMAC%-SHA256 Credential=([^/]+)/([^,]+), ?SignedHeaders=([^,]+), ?Signature=(%x+)$")
  local date, region, service = (scope or ""):match("^(%d+)/([^/]+)/([^/]+)/aws4_request$")
  local when, payload = var.http_x_amz_date or "", var.http_x_amz_content_sha256
  local at = seconds_of(when)
  if key ~= ACCESS_KEY or not date or not at or not payload or when:sub(1, 8) ~= date then
    return false
  end
  if math.abs(ngx.time() - at) > MOST_SECONDS then
    return false
  end
  local path, query = var.request_uri:match("^([^?]*)%??(.*)$")
  local lines = { ngx.req.get_method(), path, query == "" and "" or canonical_query(query) }
  local host_is_signed = false
  for name in names:gmatch("[^;]+") do
    host_is_signed = host_is_signed or name == "host"
    lines[#lines + 1] = name .. ":" .. (var["http_" .. name:gsub("-", "_")] or "")
  end
  lines[#lines + 1] = ""
  lines[#lines + 1] = names
  lines[#lines + 1] = payload
  local canonical = table.concat(lines, "\n")
  ffi.C.SHA256(canonical, #canonical, digest)
  local text = "AWS4-HMAC-SHA256\n" .. when .. "\n" .. scope .. "\n" .. in_hex()
  hmac(signing_key(scope, date, region, service), text)
  return host_is_signed and same(in_hex(), signature)
end

return {
  verify = function()
    if not is_signed() then
      ngx.exit(ngx.HTTP_FORBIDDEN)
    end
  end,
}
