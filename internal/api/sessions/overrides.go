package sessions

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"

	"sandboxd"
)

// ownNames are the fields of sandboxd.Policy by the wire's names, where they differ in
// the name alone.
var ownNames = map[string]string{
	"max_sessions": "max_running", "max_open_sessions": "max_open", "max_sessions_per_tenant": "max_per_tenant",
	"evict_idle_after": "evict_idle_after_s", "idle_timeout": "idle_timeout_s", "workspace_ttl": "workspace_ttl_s",
	"container_ttl": "environment_ttl_s", "execute_timeout": "command_timeout_s",
}

// ownLimits are the same of limits.
var ownLimits = map[string]string{"mem_limit": "memory_bytes", "memswap_limit": "swap_bytes", "cpus": "cpus",
	"cpu_shares": "cpu_shares", "pids_limit": "pids", "tmpfs_size": "tmp_bytes"}

// Overrides is a document of the wire's PUT /policy in the words of sandboxd.Policy.Merge;
// one that is in these words already stays as it is. Null, where a field cannot be
// without a value, is the default, as in a PUT. What it cannot read it leaves for Merge to
// refuse by its name.
func Overrides(text []byte) ([]byte, error) {
	var in map[string]json.RawMessage
	if err := json.Unmarshal(text, &in); err != nil {
		return nil, sandboxd.Invalid("body", "a JSON object is needed")
	}
	defaults := sandboxd.DefaultPolicy()
	out, limits := map[string]any{}, map[string]any{}
	for name, value := range in {
		own, renamed := ownNames[name]
		limit, isLimit := ownLimits[name]
		switch {
		case name == "execute_timeout" && isNull(value):
			out[own] = defaults.CommandTimeoutS
		case name == "max_read_bytes" && isNull(value):
			out[name] = defaults.MaxReadBytes
		case renamed:
			out[own] = value
		case isLimit && isNull(value):
			limits[limit] = fieldOf(defaults.Limits, limit)
		case isLimit:
			v, err := ownLimit(name, value)
			if err != nil {
				return nil, err
			}
			limits[limit] = v
		case name == "runtimes":
			v, err := ownRuntimes(value)
			if err != nil {
				return nil, err
			}
			out[name] = v
		default:
			out[name] = value
		}
	}
	if len(limits) > 0 {
		if _, both := out["limits"]; both {
			return nil, sandboxd.Invalid("limits", "the document has limits in two kinds of words")
		}
		out["limits"] = limits
	}
	return json.Marshal(out)
}

func isNull(value json.RawMessage) bool { return string(bytes.TrimSpace(value)) == "null" }

// fieldOf is a field of limits by its name; of one that is not stated 0.
func fieldOf(l sandboxd.Limits, name string) any {
	text, err := json.Marshal(l)
	var fields map[string]any
	if err == nil {
		err = json.Unmarshal(text, &fields)
	}
	if err != nil || fields[name] == nil {
		return 0
	}
	return fields[name]
}

// ownLimit reads a size that is a text; numbers stay.
func ownLimit(name string, value json.RawMessage) (any, error) {
	var size string
	if json.Unmarshal(value, &size) != nil {
		return value, nil
	}
	n, ok := sizeOf(size)
	if !ok {
		return nil, sandboxd.Invalid(name, "not a size, as 512m or 2g")
	}
	return n, nil
}

func ownRuntimes(value json.RawMessage) (any, error) {
	var entries map[string]json.RawMessage
	if json.Unmarshal(value, &entries) != nil {
		return value, nil
	}
	for alias, entry := range entries {
		var in map[string]json.RawMessage
		if isNull(entry) || json.Unmarshal(entry, &in) != nil {
			continue
		}
		out := map[string]any{}
		for name, value := range in {
			own, ok := ownLimits[name]
			if !ok || isNull(value) {
				out[cmp.Or(own, name)] = value
				continue
			}
			v, err := ownLimit(fmt.Sprintf("runtimes.%s.%s", alias, name), value)
			if err != nil {
				return nil, err
			}
			out[own] = v
		}
		text, err := json.Marshal(out)
		if err != nil {
			return nil, err
		}
		entries[alias] = text
	}
	return entries, nil
}
