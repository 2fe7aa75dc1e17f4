package app

import (
	"bytes"
	"encoding/pem"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandboxd/internal/app/datadir"
	"sandboxd/internal/cli"
)

func TestEgressSettings(t *testing.T) {
	if cfg, err := egressConfig(cli.ServeOptions{EgressAllow: []string{"10.0.0.0/8", "192.0.2.1:443"}, EgressUpstream: "http://proxy.example:3128"}); err != nil ||
		len(cfg.AllowAddresses) != 2 || cfg.Upstream.Host != "proxy.example:3128" {
		t.Errorf("%+v, %v", cfg, err)
	}
	for flag, o := range map[string]cli.ServeOptions{
		"--egress-allow-address": {EgressAllow: []string{"internal.example"}},
		"--egress-upstream":      {EgressUpstream: "socks5://op:s3cret@proxy.example"},
		"--ca-bundle":            {CABundle: "/nonexistent"},
	} {
		if _, err := egressConfig(o); err == nil || !strings.HasPrefix(err.Error(), flag) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", flag, err)
		}
	}
}

// TestTheBundleHoldsCertificatesOnly gives the operator's file a key beside its
// certificate, as such files have.
func TestTheBundleHoldsCertificatesOnly(t *testing.T) {
	srv := httptest.NewTLSServer(nil)
	defer srv.Close()
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
	dir, err := datadir.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	file := filepath.Join(t.TempDir(), "bundle.pem")
	key := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("secret")})
	for _, content := range [][]byte{nil, key, []byte("text"), []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")} {
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := writeBundle(dir, file); err == nil {
			t.Errorf("a bundle of %q was taken", content)
		}
	}
	if err := os.WriteFile(file, bytes.Join([][]byte{[]byte("# comment\n"), certificate, key, certificate}, nil), 0o600); err != nil {
		t.Fatal(err)
	}
	name, err := writeBundle(dir, file)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(name)
	if err != nil || bytes.Count(got, certificate) != 1 || bytes.Contains(got, []byte("PRIVATE KEY")) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	info, err := os.Stat(name)
	if err != nil || info.Mode() != 0o644 {
		t.Errorf("%v, %v", info, err)
	}
	// Without the operator's it is what the machine trusts, or nothing.
	if name, err = writeBundle(dir, ""); err != nil {
		t.Fatal(err)
	}
	if name != "" {
		if got, err := os.ReadFile(name); err != nil || bytes.Contains(got, certificate) || len(got) == 0 {
			t.Errorf("%d bytes, %v", len(got), err)
		}
	}
}
