package app

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"sandboxd"
	"sandboxd/internal/api/sessions"
)

// hostCheckup is what doctor finds of a host of the sessions wire.
type hostCheckup struct {
	URL     string   `json:"url"`
	Answers bool     `json:"answers"`
	Version string   `json:"version,omitempty"` // "" of one that does not say
	Missing []string `json:"missing"`           // routes that this version's clients need
}

// neededRoutes are those without which a session cannot be worked with; all others a
// client does without.
func neededRoutes() []string {
	return slices.DeleteFunc(sessions.Endpoints(), func(t string) bool {
		switch t {
		case "/sessions", "/policy", "/healthz", "/sessions/{session_id}", "/sessions/{session_id}/run",
			"/sessions/{session_id}/runs/{run_id}/stop", "/sessions/{session_id}/events":
			return false
		}
		return true
	})
}

// indexTime and indexBytes bound what a stranger's host may take.
const (
	indexTime  = 5 * time.Second
	indexBytes = 1 << 20
)

// doctorHost compares the routes that a host says it has with those that are needed. It
// sends no secret.
func doctorHost(ctx context.Context, p Process, at string, asJSON bool) error {
	base, err := url.Parse(at)
	if err != nil || base.Scheme != "http" && base.Scheme != "https" || base.Host == "" || base.User != nil {
		return sandboxd.Invalid("--host", "it is not the address of a host").WithHint("as --host http://127.0.0.1:8080")
	}
	found := hostCheckup{URL: base.Scheme + "://" + base.Host, Missing: []string{}}
	index, err := readIndex(ctx, found.URL)
	if err != nil {
		return err
	}
	found.Answers, found.Version = true, index.Version
	for _, t := range neededRoutes() {
		if !slices.Contains(index.Endpoints, t) {
			found.Missing = append(found.Missing, t)
		}
	}
	if asJSON {
		enc := json.NewEncoder(p.Stdout)
		enc.SetIndent("", "  ")
		if err := enc.Encode(found); err != nil {
			return err
		}
	} else {
		version := found.Version
		if version == "" {
			version = "it does not say which"
		}
		fmt.Fprintf(p.Stdout, "host %s: version %s\n", found.URL, version)
	}
	if len(found.Missing) > 0 {
		return sandboxd.Errorf(sandboxd.ClassUnsupported, "the versions do not match: the host lacks %s, which %s needs", strings.Join(found.Missing, ", "), Version).
			WithHint("run a host of version %s at %s, or clients of the host's version", Version, found.URL)
	}
	_, err = fmt.Fprintln(p.Stdout, "every route that is needed is there")
	return err
}

type hostIndex struct {
	Service   string   `json:"service"`
	Version   string   `json:"version"`
	Endpoints []string `json:"endpoints"`
}

func readIndex(ctx context.Context, base string) (hostIndex, error) {
	var index hostIndex
	ctx, cancel := context.WithTimeout(ctx, indexTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/", nil)
	if err != nil {
		return index, sandboxd.Invalid("--host", "it is not the address of a host")
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return index, sandboxd.Errorf(sandboxd.ClassUnavailable, "%s does not answer: %v", base, err).
			WithHint("does a host run there? `sandboxd host --listen ADDR` starts one")
	}
	defer res.Body.Close()
	data, err := io.ReadAll(io.LimitReader(res.Body, indexBytes))
	if err != nil || res.StatusCode != http.StatusOK || json.Unmarshal(data, &index) != nil || index.Endpoints == nil {
		return index, sandboxd.Errorf(sandboxd.ClassUnsupported, "%s answers, with status %d, but not as a host of the sessions wire", base, res.StatusCode).
			WithHint("is another service at this address, or a proxy before it?")
	}
	return index, nil
}
