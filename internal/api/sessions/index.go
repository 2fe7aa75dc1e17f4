package sessions

import (
	"slices"
)

// health is the union of what the wire has and what a host's own probes ask for.
type health struct {
	Status       string   `json:"status"`
	Sessions     int      `json:"sessions"`
	Limit        *int     `json:"limit"`
	OpenSessions int      `json:"open_sessions"`
	OpenLimit    *int     `json:"open_limit"`
	Runtimes     []string `json:"runtimes"`
	Version      string   `json:"version"`
	Roles        []string `json:"roles"`
	Capabilities []string `json:"capabilities"`
}

// capabilities name what a client may rely on here beyond the wire; each stands beside
// the behaviour that it names.
var capabilities = []string{
	"sessions.native_files",     // native.go
	"sessions.generation1",      // operate.go
	"sessions.stable_tokens",    // tokens.go
	"sessions.remember_runtime", // open.go
	"sessions.purge_closed",     // manage.go
	"sessions.trees",            // archive.go
}

func (f *Face) health(c *call) (health, error) {
	policy, err := f.cfg.Lifetimes.Policy(c.ctx())
	if err != nil {
		return health{}, err
	}
	recs, boxes, err := f.all(c.ctx())
	if err != nil {
		return health{}, err
	}
	names, err := f.aliases(c.ctx())
	if err != nil {
		return health{}, err
	}
	h := health{Status: "ok", Limit: policy.MaxRunning, OpenSessions: len(recs), OpenLimit: policy.MaxOpen, Runtimes: names,
		Version: f.cfg.Version, Roles: f.cfg.Roles, Capabilities: capabilities}
	if h.Roles == nil {
		h.Roles = []string{}
	}
	for _, sb := range boxes {
		if !sb.Asleep {
			h.Sessions++
		}
	}
	return h, nil
}

func (f *Face) healthz(c *call) error {
	h, err := f.health(c)
	if err != nil {
		return err
	}
	return c.ok(h)
}

// index says what is served here. Clients that meet a route which is not there compare
// its template with this list, to tell a host of another version from one that is broken.
type index struct {
	Service      string   `json:"service"`
	Health       health   `json:"health"`
	DocsURL      string   `json:"docs_url"`
	OpenAPIURL   string   `json:"openapi_url"`
	UIURL        *string  `json:"ui_url"`
	Endpoints    []string `json:"endpoints"`
	Version      string   `json:"version"`
	Capabilities []string `json:"capabilities"`
}

func (f *Face) index(c *call) error {
	h, err := f.health(c)
	if err != nil {
		return err
	}
	return c.ok(index{Service: "sandboxd", Health: h, DocsURL: "/openapi.json", OpenAPIURL: "/openapi.json",
		Endpoints: f.endpoints, Version: f.cfg.Version, Capabilities: capabilities})
}

// Endpoints lists the templates of the wire's routes, and others beside them, as the
// index does.
func Endpoints(others ...string) []string {
	list := slices.Clone(others)
	for _, rt := range table {
		if rt.path != "/" {
			list = append(list, rt.path)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}
