package app

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"sandboxd"
	"sandboxd/internal/api/sessions"
)

// TestDoctorTellsAMismatchFromAStranger looks at a host of this version, one that lacks
// routes, and something that is none.
func TestDoctorTellsAMismatchFromAStranger(t *testing.T) {
	var body any
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Sandbox-Token")+r.Header.Get("Authorization") != "" {
			t.Error("a secret was sent")
		}
		_ = json.NewEncoder(w).Encode(body)
	}))
	defer srv.Close()
	ask := func() (string, error) {
		var out bytes.Buffer
		err := doctorHost(t.Context(), Process{Stdout: &out, Stderr: &out}, srv.URL, false)
		return out.String(), err
	}
	all := sessions.Endpoints()
	body = map[string]any{"service": "sandboxd", "version": "v9", "endpoints": all}
	if out, err := ask(); err != nil || !strings.Contains(out, "version v9") || !strings.Contains(out, "every route") {
		t.Errorf("%s %v", out, err)
	}
	var without []string
	for _, e := range all {
		if !strings.HasSuffix(e, "/run") {
			without = append(without, e)
		}
	}
	body = map[string]any{"service": "sandboxd", "endpoints": without}
	out, err := ask()
	if err == nil || !strings.Contains(err.Error(), "versions do not match") || !strings.Contains(err.Error(), "/sessions/{session_id}/run") || !strings.Contains(out, "does not say") {
		t.Errorf("%s %v", out, err)
	}
	body = []string{"hello"}
	if _, err := ask(); err == nil || sandboxd.ClassOf(err) != sandboxd.ClassUnsupported || strings.Contains(err.Error(), "versions") {
		t.Errorf("%v", err)
	}
	srv.Close()
	if _, err := ask(); sandboxd.ClassOf(err) != sandboxd.ClassUnavailable {
		t.Errorf("%v", err)
	}
	for _, at := range []string{"", "ftp://x", "http://user:pw@x", "127.0.0.1:8080"} {
		if err := doctorHost(t.Context(), Process{}, at, false); sandboxd.ClassOf(err) != sandboxd.ClassInvalid {
			t.Errorf("%q: %v", at, err)
		}
	}
}
