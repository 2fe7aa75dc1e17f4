package cli

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"sandboxd"
)

// peerSettings are the names that another service of the sessions wire has for settings of
// ours, so that its environment starts this one. Empty, each says that there is no bound.
var peerSettings = []struct{ theirs, ours string }{
	{"SANDBOXD_MAX_SESSIONS", "SANDBOXD_MAX_SANDBOXES"},
	{"SANDBOXD_MAX_OPEN_SESSIONS", "SANDBOXD_MAX_OPEN"},
	{"SANDBOXD_MAX_SESSIONS_PER_TENANT", "SANDBOXD_MAX_PER_TENANT"},
	{"SANDBOXD_CONTAINER_TTL", "SANDBOXD_ENVIRONMENT_TTL"},
}

// fixedSettings are those of its names that have one value here. "*" takes any: what it
// would change does not exist.
var fixedSettings = map[string]string{
	"SANDBOXD_WORK_DIR":             sandboxd.WorkDir,
	"SANDBOXD_NETWORK_MODE":         "none",  // a runtime that needs a network says so
	"SANDBOXD_SANDBOX_UID":          "10001", // empty, it says nothing
	"SANDBOXD_PERSIST_CONTAINERS":   "*",     // what is installed lasts where a runtime's root is writable
	"SANDBOXD_MAX_WORKERS":          "*",
	"SANDBOXD_NATIVE_FILES":         "*", // they always are
	"SANDBOXD_MAX_RUNNING_COMMANDS": "*", // many hold up nobody
	"SANDBOXD_CLEANUP_INTERVAL":     "*",
}

// adoptPeers is p with the settings of a server under our names. Other commands do not
// read the names of others.
func adoptPeers(p Process) (Process, error) {
	if !slices.Contains(p.Args, "serve") && !slices.Contains(p.Args, "host") {
		return p, nil
	}
	set := map[string]string{}
	var kept []string
	for _, entry := range p.Environ {
		name, value, _ := strings.Cut(entry, "=")
		if strings.HasPrefix(name, "SANDBOXD_") && name != "SANDBOXD_TOKEN" {
			value = spelled(name, value)
		}
		set[name] = value
		if !isPeers(name, value) {
			kept = append(kept, name+"="+value)
		}
	}
	add := func(theirs, ours, value string) error {
		if own, given := set[ours]; given && own != "" && own != value {
			return usageError{fmt.Sprintf("%s and %s are one setting and have two values", theirs, ours), "unset one of them"}
		}
		kept = append(kept, ours+"="+value)
		return nil
	}
	for _, row := range peerSettings {
		value, given := set[row.theirs]
		if !given {
			continue
		}
		if value == "" {
			value = "none"
		}
		if err := add(row.theirs, row.ours, value); err != nil {
			return p, err
		}
	}
	for name, only := range fixedSettings {
		value, given := set[name]
		if name == "SANDBOXD_SANDBOX_UID" && value == "" {
			continue
		}
		if given && only != "*" && value != only {
			return p, usageError{fmt.Sprintf("%s can only be %s here", name, only), "unset it"}
		}
	}
	host, port := set["SANDBOXD_HOST"], set["SANDBOXD_PORT"]
	if !isPort(port) {
		port = "" // Kubernetes makes a variable of this name for a Service
	}
	if host != "" || port != "" {
		if host == "" {
			host = "127.0.0.1"
		}
		if port == "" {
			port = "8080"
		}
		if err := add("SANDBOXD_HOST with SANDBOXD_PORT", "SANDBOXD_HOST_LISTEN", net.JoinHostPort(host, port)); err != nil {
			return p, err
		}
	}
	p.Environ = kept
	return p, nil
}

// spelled is a value in our spelling: theirs may stand between spaces, and be on or off.
func spelled(name, value string) string {
	value = strings.TrimSpace(value)
	if name == "SANDBOXD_PREWARM" {
		switch strings.ToLower(value) {
		case "on":
			return "true"
		case "off":
			return "false"
		}
	}
	return value
}

func isPeers(name, value string) bool {
	for _, row := range peerSettings {
		if row.theirs == name {
			return true
		}
	}
	_, fixed := fixedSettings[name]
	return fixed || name == "SANDBOXD_HOST" || name == "SANDBOXD_PORT" && isPort(value)
}

func isPort(text string) bool {
	n, err := strconv.ParseUint(text, 10, 16)
	return err == nil && n <= 65535
}
