package hostlistener

import (
	"fmt"
	"net/http"
	"strings"

	"sandboxd"
	"sandboxd/internal/api"
)

// metrics are figures in the text format of Prometheus: what there is and how much there
// may be. None is labelled by a sandbox or a tenant, of which there may be any number. The
// few lines are written by hand: nothing here counts, all of it is looked up.
func (l *Listener) metrics(w http.ResponseWriter, r *http.Request) {
	if !l.authorized(w, r) {
		return
	}
	text, err := l.figures(r)
	if err != nil {
		api.Note(r.Context(), err)
		http.Error(w, publicText(err), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write([]byte(text))
}

func (l *Listener) figures(r *http.Request) (string, error) {
	list, err := l.machine.List(r.Context(), "")
	if err != nil {
		return "", err
	}
	open, err := l.cfg.Sessions.ListSessions(r.Context())
	if err != nil {
		return "", err
	}
	policy, err := l.machine.Policy(r.Context())
	if err != nil {
		return "", err
	}
	states, asleep := map[sandboxd.State]int{}, 0
	for _, sb := range list {
		states[sb.State]++
		if sb.Asleep {
			asleep++
		}
	}
	var b strings.Builder
	gauge := func(name, help string) { fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %[1]s gauge\n", name, help) }
	value := func(name string, n int) { fmt.Fprintf(&b, "%s %d\n", name, n) }
	gauge("sandboxd_info", "What runs here; always 1.")
	fmt.Fprintf(&b, "sandboxd_info{version=%q} 1\n", l.cfg.Version)
	gauge("sandboxd_sandboxes", "Sandboxes by state.")
	for _, s := range sandboxd.States() {
		if s != sandboxd.StateDeleted {
			fmt.Fprintf(&b, "sandboxd_sandboxes{state=%q} %d\n", s, states[s])
		}
	}
	gauge("sandboxd_sandboxes_asleep", "Sandboxes that were put to sleep to make room.")
	value("sandboxd_sandboxes_asleep", asleep)
	gauge("sandboxd_sessions_open", "Sessions of the sessions wire that are open.")
	value("sandboxd_sessions_open", len(open))
	for _, ceiling := range []struct {
		name, help string
		limit      *int
	}{
		{"sandboxd_max_running", "Sandboxes that may run at once; absent for no bound.", policy.MaxRunning},
		{"sandboxd_max_open", "Sandboxes that may be open; absent for no bound.", policy.MaxOpen},
	} {
		if ceiling.limit != nil {
			gauge(ceiling.name, ceiling.help)
			value(ceiling.name, *ceiling.limit)
		}
	}
	gauge("sandboxd_draining", "Whether no new sandboxes are opened here.")
	draining := 0
	if l.machine.shut.Load() {
		draining = 1
	}
	value("sandboxd_draining", draining)
	return b.String(), nil
}
