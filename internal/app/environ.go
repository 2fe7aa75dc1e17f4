package app

import (
	"regexp"
	"slices"
	"strings"

	"sandboxd"
	"sandboxd/internal/app/datadir"
)

// serverSettings are the variables that a server reads. A test keeps them equal
// to the tags of the command line.
var serverSettings = []string{
	"SANDBOXD_ALLOWED_HOSTS", "SANDBOXD_APP_IDLE_TIMEOUT", "SANDBOXD_BASE_IMAGE", "SANDBOXD_BRIDGE", "SANDBOXD_BUILD_LIMIT", "SANDBOXD_CATALOGUE",
	"SANDBOXD_CA_BUNDLE", "SANDBOXD_CPUS", "SANDBOXD_CPU_SHARES", "SANDBOXD_DATA", "SANDBOXD_DEFAULT_IMAGE", "SANDBOXD_DEFAULT_RUNTIME", "SANDBOXD_DRIVER",
	"SANDBOXD_EGRESS_ALLOW_ADDRESS", "SANDBOXD_EGRESS_UPSTREAM", "SANDBOXD_ENVIRONMENT_TTL", "SANDBOXD_EVICT_IDLE_AFTER", "SANDBOXD_EXECUTE_TIMEOUT",
	"SANDBOXD_HOST_LISTEN", "SANDBOXD_IDLE_TIMEOUT", "SANDBOXD_IMAGES", "SANDBOXD_LISTEN", "SANDBOXD_LOG_FORMAT",
	"SANDBOXD_MAX_OPEN", "SANDBOXD_MAX_PER_TENANT", "SANDBOXD_MAX_READ_BYTES", "SANDBOXD_MAX_SANDBOXES", "SANDBOXD_MEMSWAP_LIMIT", "SANDBOXD_MEM_LIMIT", "SANDBOXD_OCI_RUNTIME", "SANDBOXD_OWNER_LEASE",
	"SANDBOXD_PIDS_LIMIT",
	"SANDBOXD_POLICY_OVERRIDES", "SANDBOXD_PREWARM", "SANDBOXD_PROTECTED_BY", "SANDBOXD_READY", "SANDBOXD_RUNTIMES", "SANDBOXD_TMPFS_SIZE", "SANDBOXD_TOKEN", "SANDBOXD_UI_ENABLED",
	"SANDBOXD_WORKSPACE_ROOT", "SANDBOXD_WORKSPACE_TTL",
}

// clientSettings are read by clients and ignored by servers.
var clientSettings = []string{"SANDBOXD_URL"}

// injected are the variables that Kubernetes makes for a Service whose name
// begins with sandboxd, and those of our own test suites. Nobody set them for us.
var injected = regexp.MustCompile(`^SANDBOXD_([A-Z0-9_]+_)?(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$|^SANDBOXD_TEST_`)

// checkEnviron refuses variables that were meant for us and would be ignored.
func checkEnviron(environ []string) error {
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, "SANDBOXD_") {
			continue
		}
		if name == "SANDBOXD_TOKEN" && strings.HasPrefix(value, datadir.APIKeyPrefix) {
			return sandboxd.Errorf(sandboxd.ClassInvalid, "SANDBOXD_TOKEN holds an API key; to a server it is the token between control and hosts").
				WithHint("unset it: the server reads its own key from the file token of its data directory")
		}
		if slices.Contains(serverSettings, name) || slices.Contains(clientSettings, name) || injected.MatchString(name) {
			continue
		}
		return sandboxd.Errorf(sandboxd.ClassInvalid, "the environment has an unknown setting %s", name).
			WithHint("unset it, or correct the name; known are %s", strings.Join(serverSettings, ", "))
	}
	return nil
}
