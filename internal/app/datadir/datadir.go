// Package datadir knows the top of a data directory: where it is by default, who
// holds it, which format it has, and its two secrets. It knows nothing of what
// the host keeps below it.
package datadir

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"sandboxd"
)

// Format is the version of the directory that this program writes. A directory
// of a higher one was made by a newer program and is refused.
const Format = 1

// RootDefault is the data directory of root. The extra e is intended: it is the
// name that existing installations have.
const RootDefault = "/var/lib/sandboxed"

// OtherSpelling is the name that people expect and that is not read.
const OtherSpelling = "/var/lib/sandboxd"

// TokenFile and HostTokenFile are the names of the secrets: the administrator's
// API key, and the service token between control and hosts.
const (
	TokenFile     = "token"
	HostTokenFile = "host-token"
)

// SessionKeyFile holds the secret from which the tokens of sessions are derived.
const SessionKeyFile = "session-key"

// APIKeyPrefix begins every API key and no service token.
const APIKeyPrefix = "sk_"

// Default is where the data lives when nobody says so. getenv reads the caller's
// environment.
func Default(uid int, getenv func(string) string) string {
	if uid == 0 {
		return RootDefault
	}
	state := getenv("XDG_STATE_HOME")
	if state == "" || !filepath.IsAbs(state) {
		state = filepath.Join(getenv("HOME"), ".local", "state")
	}
	return filepath.Join(state, "sandboxd")
}

// Dir is a data directory that this process holds. Close lets go of it.
type Dir struct {
	Path string
	lock *os.File
}

// Open makes the directory if needed, locks it and checks its format. A second
// server on one directory is ClassConflict.
func Open(path string) (*Dir, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, sandboxd.Wrap(sandboxd.ClassInvalid, err, "the data directory has no absolute path")
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, unusable(path, err)
	}
	lock, err := os.OpenFile(filepath.Join(path, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, unusable(path, err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, sandboxd.Errorf(sandboxd.ClassConflict, "another server%s uses the data directory %s", holder(lock), path).
				WithHint("stop it, or name another directory with --data")
		}
		return nil, unusable(path, err)
	}
	d := &Dir{Path: path, lock: lock}
	if err := d.claim(); err != nil {
		lock.Close()
		return nil, err
	}
	return d, nil
}

// claim writes our pid for people who ask who holds the lock, and the format.
func (d *Dir) claim() error {
	if err := d.lock.Truncate(0); err != nil {
		return unusable(d.Path, err)
	}
	if _, err := d.lock.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0); err != nil {
		return unusable(d.Path, err)
	}
	name := filepath.Join(d.Path, "format")
	text, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return writeOnce(name, strconv.Itoa(Format)+"\n")
	}
	if err != nil {
		return unusable(d.Path, err)
	}
	found, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return sandboxd.Errorf(sandboxd.ClassConflict, "%s does not hold a number", name).
			WithHint("restore it from a backup; this program writes %d", Format)
	}
	if found > Format {
		return sandboxd.Errorf(sandboxd.ClassConflict, "the data directory %s has format %d and this program knows up to %d", d.Path, found, Format).
			WithHint("use the newer program that made it, or restore the backup from before the upgrade")
	}
	return nil
}

// Close lets another server take the directory.
func (d *Dir) Close() error { return d.lock.Close() }

// APIKey is the administrator's key, made at the first start and never again.
func (d *Dir) APIKey() (string, error) { return d.secret(TokenFile, APIKeyPrefix) }

// HostToken is the service token, made at the first start and never again.
func (d *Dir) HostToken() (string, error) { return d.secret(HostTokenFile, "") }

// SessionKey is the secret behind the tokens of sessions, made at the first start and
// never again.
func (d *Dir) SessionKey() ([]byte, error) {
	key, err := d.secret(SessionKeyFile, "")
	return []byte(key), err
}

func (d *Dir) secret(file, prefix string) (string, error) {
	name := filepath.Join(d.Path, file)
	secret, err := ReadSecret(name)
	if err == nil && !strings.HasPrefix(secret, prefix) {
		return "", sandboxd.Errorf(sandboxd.ClassInvalid, "%s does not begin with %s", name, prefix).
			WithHint("move the file away to have a new one made")
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return secret, err
	}
	var raw [32]byte
	if _, err := rand.Read(raw[:]); err != nil {
		return "", sandboxd.Wrap(sandboxd.ClassInternal, err, "the kernel gave no randomness")
	}
	secret = prefix + base64.RawURLEncoding.EncodeToString(raw[:])
	return secret, writeOnce(name, secret+"\n")
}

// ReadSecret reads a secret's file. A missing file is fs.ErrNotExist; an empty
// one is ClassInvalid, because it would let everybody in.
func ReadSecret(name string) (string, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return "", err
	}
	secret := strings.TrimSpace(string(text))
	if secret == "" {
		return "", sandboxd.Errorf(sandboxd.ClassInvalid, "%s is empty", name).WithHint("move the file away to have a new one made")
	}
	return secret, nil
}

// writeOnce makes a file durably and whole, or not at all.
func writeOnce(name, text string) error {
	dir := filepath.Dir(name)
	tmp, err := os.CreateTemp(dir, "."+filepath.Base(name)+"-*") // mode 0600
	if err != nil {
		return unusable(dir, err)
	}
	defer os.Remove(tmp.Name())
	defer tmp.Close()
	if _, err := tmp.WriteString(text); err != nil {
		return unusable(dir, err)
	}
	if err := tmp.Sync(); err != nil {
		return unusable(dir, err)
	}
	if err := os.Rename(tmp.Name(), name); err != nil {
		return unusable(dir, err)
	}
	parent, err := os.Open(dir)
	if err != nil {
		return unusable(dir, err)
	}
	defer parent.Close()
	if err := parent.Sync(); err != nil {
		return unusable(dir, err)
	}
	return nil
}

func unusable(path string, err error) error {
	class := sandboxd.ClassUnavailable
	if errors.Is(err, unix.ENOSPC) {
		class = sandboxd.ClassNoSpace
	}
	return sandboxd.Errorf(class, "the data directory %s cannot be used: %v", path, err).
		WithHint("name a directory that this user can write with --data")
}

// Holder is the process that holds a data directory now, as this one sees its number; 0
// for none, and for one that cannot be seen. It does not touch the lock.
func Holder(path string) int {
	var lock unix.Stat_t
	if err := unix.Stat(filepath.Join(path, "lock"), &lock); err != nil {
		return 0
	}
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		return 0
	}
	file := fmt.Sprintf("%02x:%02x:%d", unix.Major(lock.Dev), unix.Minor(lock.Dev), lock.Ino)
	for line := range strings.Lines(string(locks)) {
		if f := strings.Fields(line); len(f) > 5 && f[1] == "FLOCK" && f[5] == file {
			pid, _ := strconv.Atoi(f[4])
			return max(pid, 0)
		}
	}
	return 0
}

// holder names the process that wrote the lock file, if it said so.
func holder(lock *os.File) string {
	text, err := io.ReadAll(io.LimitReader(lock, 32))
	if err != nil {
		return ""
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return ""
	}
	return fmt.Sprintf(" (pid %d)", pid)
}
