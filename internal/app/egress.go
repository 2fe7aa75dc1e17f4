package app

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net/netip"
	"os"
	"path/filepath"

	"sandboxd"
	"sandboxd/internal/app/datadir"
	"sandboxd/internal/cli"
	"sandboxd/internal/egress"
)

// machineRoots are where distributions keep the certificates that the machine
// trusts, as one file.
var machineRoots = []string{"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"}

// openEgress makes the proxy of sandboxes that have a network.
func (s *server) openEgress() error {
	cfg, err := egressConfig(s.o)
	if err != nil {
		return err
	}
	s.egress = egress.New(cfg)
	s.opened.add("egress", func(context.Context) error { return s.egress.Close() })
	return nil
}

func egressConfig(o cli.ServeOptions) (egress.Config, error) {
	var cfg egress.Config
	rules, err := egress.ParseAddressRules(o.EgressAllow)
	if err != nil {
		return cfg, sandboxd.Invalid("--egress-allow-address", "%v", err)
	}
	cfg.AllowAddresses = rules
	if o.EgressUpstream != "" {
		if cfg.Upstream, err = egress.ParseUpstream(o.EgressUpstream); err != nil {
			return cfg, sandboxd.Invalid("--egress-upstream", "%v", err)
		}
	}
	if o.CABundle != "" {
		roots, err := x509.SystemCertPool()
		if err != nil {
			roots = x509.NewCertPool() // the machine has none
		}
		extra, err := certificates(o.CABundle)
		if err != nil {
			return cfg, err
		}
		for _, c := range extra {
			roots.AddCert(c)
		}
		cfg.Roots = roots
	}
	return cfg, nil
}

// protect keeps a listener of the server out of every sandbox's reach.
func (s *server) protect(addr string) {
	if at, err := netip.ParseAddrPort(addr); err == nil {
		s.egress.Protect(at)
	}
}

// certificates reads the operator's file; one without any is a mistake.
func certificates(name string) ([]*x509.Certificate, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, sandboxd.Invalid("--ca-bundle", "%v", err)
	}
	list, err := parseCertificates(text)
	if err == nil && len(list) == 0 {
		err = errors.New("it holds no certificate in PEM form")
	}
	if err != nil {
		return nil, sandboxd.Invalid("--ca-bundle", "%s: %v", name, err)
	}
	return list, nil
}

// parseCertificates answers all that can be read, and what was wrong with the rest.
func parseCertificates(text []byte) (list []*x509.Certificate, bad error) {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		// Whatever else lies in the file, as a key, goes into no sandbox.
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			bad = err
			continue
		}
		list = append(list, c)
	}
	return list, bad
}

// bundleText is what sandboxes and builds are to trust: what the machine trusts and,
// behind it, the operator's own. It is empty when there is nothing to trust.
func bundleText(operators string) ([]byte, error) {
	var all []*x509.Certificate
	for _, name := range machineRoots {
		if text, err := os.ReadFile(name); err == nil {
			// One that this program cannot read is no reason to leave out the others.
			all, _ = parseCertificates(text)
			break
		}
	}
	if operators != "" {
		extra, err := certificates(operators)
		if err != nil {
			return nil, err
		}
		all = append(all, extra...)
	}
	var text bytes.Buffer
	seen := map[string]bool{}
	for _, c := range all {
		if !seen[string(c.Raw)] {
			seen[string(c.Raw)] = true
			if err := pem.Encode(&text, &pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}); err != nil {
				return nil, err
			}
		}
	}
	return text.Bytes(), nil
}

// writeBundle puts what sandboxes are to trust into the data directory. It answers the
// file, "" when there is nothing to trust.
func writeBundle(dir *datadir.Dir, operators string) (string, error) {
	text, err := bundleText(operators)
	if err != nil || len(text) == 0 {
		return "", err
	}
	// A new file and not a new content: sandboxes that run have the old one mounted.
	name := filepath.Join(dir.Path, "run", "ca.pem")
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return "", sandboxd.Wrap(sandboxd.ClassUnavailable, err, "the data directory cannot be used")
	}
	temp := name + ".new"
	if err := errors.Join(os.WriteFile(temp, text, 0o600), os.Chmod(temp, 0o644), os.Rename(temp, name)); err != nil {
		return "", sandboxd.Wrap(sandboxd.ClassUnavailable, err, "the certificates for sandboxes cannot be written")
	}
	return name, nil
}
