package sessions

import (
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"sandboxd/internal/captest"
	"sandboxd/test/server"
)

// TestSettings starts the host with every setting of the published service as that has it
// by default, an absent one empty, and compares the policy. The page for who comes from
// there names each.
func TestSettings(t *testing.T) {
	captest.Root(t)
	out, err := exec.CommandContext(t.Context(), published(t, "generation2")+"/bin/python", "-B", filepath.Join(server.Repository(), "test", "sessions", "python", "settings.py")).Output()
	if err != nil {
		t.Fatal(err)
	}
	var theirs map[string]any
	if err := json.Unmarshal(out, &theirs); err != nil || len(theirs) < 28 {
		t.Fatalf("%s, %v", out, err)
	}
	page, err := os.ReadFile(filepath.Join(server.Repository(), "docs", "migrate-from-python-sandboxd.md"))
	if err != nil {
		t.Fatal(err)
	}
	env := server.Environ()
	for field, value := range theirs {
		name := "SANDBOXD_" + strings.ToUpper(field)
		if !regexp.MustCompile("`" + name + "`").Match(page) {
			t.Errorf("the page does not say what becomes of %s", name)
		}
		switch {
		case field == "token" || field == "runtimes":
			// They have no default, and one that is not ours.
		case value == nil:
			env = append(env, name+"=")
		default:
			env = append(env, name+"="+asText(t, value))
		}
	}
	m := newMachine(t, env, "--driver", "process")
	token, err := os.ReadFile(filepath.Join(m.spec.Data, "host-token"))
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+m.host+"/policy", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Sandbox-Token", strings.TrimSpace(string(token)))
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var policy map[string]any
	if err := json.NewDecoder(res.Body).Decode(&policy); err != nil {
		t.Fatal(err)
	}
	compared := 0
	for field, value := range theirs {
		shown, there := policy[field]
		if !there || field == "default_runtime" || field == "runtimes" {
			continue
		}
		compared++
		if !reflect.DeepEqual(shown, value) {
			t.Errorf("%s is %v, and %v there", field, shown, value)
		}
	}
	if compared < 20 {
		t.Errorf("only %d settings are in %v", compared, policy)
	}
}

// asText is a value as an environment has it.
func asText(t *testing.T, v any) string {
	t.Helper()
	if text, ok := v.(string); ok {
		return text
	}
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
