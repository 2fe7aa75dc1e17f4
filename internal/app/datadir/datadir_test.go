package datadir

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sandboxd"
)

func TestDefault(t *testing.T) {
	env := func(m map[string]string) func(string) string { return func(k string) string { return m[k] } }
	for _, c := range []struct {
		uid  int
		env  map[string]string
		want string
	}{
		{0, map[string]string{"XDG_STATE_HOME": "/x"}, "/var/lib/sandboxed"},
		{7, map[string]string{"XDG_STATE_HOME": "/x", "HOME": "/h"}, "/x/sandboxd"},
		{7, map[string]string{"XDG_STATE_HOME": "relative", "HOME": "/h"}, "/h/.local/state/sandboxd"},
		{7, map[string]string{"HOME": "/h"}, "/h/.local/state/sandboxd"},
	} {
		if got := Default(c.uid, env(c.env)); got != c.want {
			t.Errorf("Default(%d, %v) = %s, want %s", c.uid, c.env, got, c.want)
		}
	}
}

func TestSecretsAreMadeOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "data")
	d, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	key, err := d.APIKey()
	if err != nil || !regexp.MustCompile(`^sk_[A-Za-z0-9_-]{43}$`).MatchString(key) {
		t.Fatalf("APIKey = %q, %v", key, err)
	}
	again, err := d.APIKey()
	if err != nil || again != key {
		t.Fatalf("second APIKey = %q, %v; want the first", again, err)
	}
	host, err := d.HostToken()
	if err != nil || strings.HasPrefix(host, APIKeyPrefix) || host == key {
		t.Fatalf("HostToken = %q, %v", host, err)
	}
	for _, name := range []string{TokenFile, HostTokenFile} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v; want 0600", name, info.Mode(), err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 4 {
		t.Fatalf("entries %v, %v; want lock, format and two secrets", entries, err)
	}
}

func TestBadSecretsAreRefused(t *testing.T) {
	d, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, text := range []string{"", "\n", "nokey\n"} {
		if err := os.WriteFile(filepath.Join(d.Path, TokenFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := d.APIKey(); sandboxd.ClassOf(err) != sandboxd.ClassInvalid {
			t.Errorf("APIKey of %q = %q, %v; want a refusal", text, got, err)
		}
	}
}

func TestOneServerOnly(t *testing.T) {
	dir := t.TempDir()
	d, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); sandboxd.ClassOf(err) != sandboxd.ClassConflict || !strings.Contains(err.Error(), "another server (pid ") {
		t.Fatalf("second Open: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d, err = Open(dir)
	if err != nil {
		t.Fatalf("Open after Close: %v", err)
	}
	d.Close()
}

func TestFormat(t *testing.T) {
	for text, ok := range map[string]bool{"1\n": true, "2\n": false, "x": false} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "format"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		d, err := Open(dir)
		if (err == nil) != ok {
			t.Errorf("format %q: %v", text, err)
		}
		if err == nil {
			d.Close()
		}
	}
}
