-- The edit as a Lua filter usually does it: the body as one string, and plain search. Nested decoys and
-- escaped keys fool it.
function envoy_on_request(request)
  local body = request:body()
  local text = body:getBytes(0, body:length())
  local _, params = string.find(text, '"kv_transfer_params":{', 1, true)
  if params then
    local first, last = string.find(text, '"max_load_tokens":', params, true)
    if first then
      local _, digits = string.find(text, "^%d+", last + 1)
      text = string.sub(text, 1, last) .. "0" .. string.sub(text, digits + 1)
    else
      local comma = string.sub(text, params + 1, params + 1) == "}" and "" or ","
      text = string.sub(text, 1, params) .. '"max_load_tokens":0' .. comma .. string.sub(text, params + 1)
    end
  else
    text = string.sub(text, 1, -2) .. ',"kv_transfer_params":{"max_load_tokens":0}}'
  end
  request:headers():replace("content-length", body:setBytes(text))
end
