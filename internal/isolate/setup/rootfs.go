package setup

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// machineTop is what of the machine a sandbox without an image sees; machineEtc
// is what of its /etc. Everything else of /etc is the machine's own business.
var (
	machineTop = []string{"usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"}
	machineEtc = []string{"alternatives", "ssl/certs", "ssl/openssl.cnf", "ld.so.cache", "ld.so.conf", "ld.so.conf.d",
		"fonts", "localtime", "timezone", "mime.types", "services", "protocols"}
)

// ours are the names at the top that the sandbox has its own of, whatever an
// image holds there.
var ours = []string{"workspace", "home", "tmp", "dev", "proc", "sys", "run", "etc", "var"}

// terminals bounds those of one sandbox.
const terminals = "256"

const (
	readOnly = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	readWrit = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
)

// buildRoot makes the sandbox's root on spec.Base and moves into it. All
// destinations are names below the current directory in a file system that
// nobody else has seen, so no link of an image can lead one of them elsewhere.
func buildRoot(spec Spec) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("detach from the machine's mounts: %w", err)
	}
	source, err := unix.Open(orRoot(spec.Root), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the source: %w", err)
	}
	defer unix.Close(source)
	// Room for what an image may have at its top and in its etc (image.MaxNames), each a link
	// of the longest kind.
	if err := unix.Mount("tmpfs", spec.Base, "tmpfs", unix.MS_NOSUID, "size=8m,nr_inodes=2k,mode=755"); err != nil {
		return fmt.Errorf("mount the root: %w", err)
	}
	if err := unix.Chdir(spec.Base); err != nil {
		return err
	}
	b := builder{source: source, spec: spec}
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"directories", b.directories}, {"programs", b.programs}, {"etc", b.etc}, {"dev", b.devices},
		{"workspace", b.files}, {"certificates", b.certificates}, {"proc", b.proc}, {"pivot", b.pivot},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return nil
}

func orRoot(dir string) string {
	if dir == "" {
		return "/"
	}
	return dir
}

type builder struct {
	source int
	spec   Spec
}

func (b builder) directories() error {
	for _, d := range []string{"workspace", "home", "home/sandbox", "tmp", "dev", "dev/pts", "dev/shm", "proc", "run", "etc", "var"} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return err
		}
	}
	if err := os.Mkdir("var/empty", 0o555); err != nil {
		return err
	}
	return os.Symlink("../tmp", "var/tmp")
}

// programs binds what there is to run, read-only with everything mounted below.
func (b builder) programs() error {
	names := machineTop
	if b.spec.Root != "" {
		var err error
		if names, err = list(b.source, "."); err != nil {
			return err
		}
	}
	for _, name := range names {
		if slices.Contains(ours, name) {
			continue
		}
		if err := b.show(name, name); err != nil {
			return err
		}
	}
	return nil
}

func list(dir int, name string) ([]string, error) {
	fd, err := openIn(dir, name, unix.O_RDONLY|unix.O_DIRECTORY)
	// In an image it may be anything: a file, or a link that leads nowhere.
	if err == unix.ENOENT || err == unix.ENOTDIR || err == unix.ELOOP {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	return f.Readdirnames(-1)
}

// lookups bounds how often a name is looked up: while somebody on the machine renames
// or mounts anything, the kernel cannot tell whether ".." has left the root, and wants
// to be asked again.
const lookups = 1000

func openIn(dir int, name string, flags uint64) (fd int, err error) {
	for range lookups {
		fd, err = unix.Openat2(dir, name, &unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
		if err != unix.EAGAIN && err != unix.EINTR {
			break
		}
	}
	return fd, err
}

// show makes name of the source visible at to: a link as a link, the rest as a
// read-only bind. What is not there is left out.
func (b builder) show(name, to string) error {
	fd, err := openIn(b.source, name, unix.O_PATH|unix.O_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		target := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(fd, "", target)
		if err != nil {
			return err
		}
		return os.Symlink(string(target[:n]), to)
	case unix.S_IFDIR:
		if err := os.Mkdir(to, 0o755); err != nil {
			return err
		}
	case unix.S_IFREG:
		if err := os.WriteFile(to, nil, 0o644); err != nil {
			return err
		}
	default:
		return nil
	}
	return bind(fd, to, readOnly, unix.AT_RECURSIVE)
}

// bind attaches a copy of the mount at fd. The attributes are set before it can
// be seen, and with recursive for every mount below it, which a remount would
// not do.
func bind(fd int, to string, attrs uint64, recursive uint) error {
	tree, err := unix.OpenTree(fd, "", unix.AT_EMPTY_PATH|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|recursive)
	if err != nil {
		return fmt.Errorf("%s: open_tree: %w", to, err)
	}
	defer unix.Close(tree)
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|recursive, &unix.MountAttr{Attr_set: attrs}); err != nil {
		return fmt.Errorf("%s: mount_setattr: %w", to, err)
	}
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, to, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("%s: move_mount: %w", to, err)
	}
	return nil
}

// etc generates who is who and shows an allow-list of the rest.
func (b builder) etc() error {
	host := b.spec.Hostname
	files := accounts(b.spec.UID)
	maps.Copy(files, map[string]string{
		"hosts":         fmt.Sprintf("127.0.0.1\tlocalhost %s\n::1\tlocalhost\n", host),
		"hostname":      host + "\n",
		"nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n",
		"resolv.conf":   "",
	})
	if err := write("etc", files); err != nil {
		return err
	}
	names := machineEtc
	if b.spec.Root != "" {
		var err error
		if names, err = list(b.source, "etc"); err != nil {
			return err
		}
	}
	for _, name := range names {
		if _, made := files[name]; made || name == "shadow" || name == "gshadow" {
			continue
		}
		if dir, _, nested := strings.Cut(name, "/"); nested {
			if err := os.MkdirAll(filepath.Join("etc", dir), 0o755); err != nil {
				return err
			}
		}
		if err := b.show("etc/"+name, "etc/"+name); err != nil {
			return err
		}
	}
	return nil
}

// accounts are the files of /etc that name the user.
func accounts(uid uint32) map[string]string {
	return map[string]string{
		"passwd": fmt.Sprintf("root:x:0:0:root:/root:/usr/sbin/nologin\nsandbox:x:%d:%d:sandbox:/home/sandbox:/bin/sh\n"+
			"nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n", uid, uid),
		"group": fmt.Sprintf("root:x:0:\ntty:x:5:\nsandbox:x:%d:\nnogroup:x:65534:\n", uid),
	}
}

func write(dir string, files map[string]string) error {
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// devices are made, not borrowed: a node in an image or on the machine may be
// anything. Without root they cannot be made.
func (b builder) devices() error {
	for _, d := range []struct {
		name         string
		major, minor uint32
	}{{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0}} {
		name := "dev/" + d.name
		if b.spec.Rootless {
			if err := borrow(name, unix.Mkdev(d.major, d.minor)); err != nil {
				return fmt.Errorf("%s: %w", d.name, err)
			}
			continue
		}
		if err := unix.Mknod(name, unix.S_IFCHR|0o666, int(unix.Mkdev(d.major, d.minor))); err != nil {
			return fmt.Errorf("%s: %w", d.name, err)
		}
		if err := os.Chmod(name, 0o666); err != nil {
			return err
		}
	}
	for name, target := range map[string]string{"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0",
		"stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2", "ptmx": "pts/ptmx"} {
		if err := os.Symlink(target, "dev/"+name); err != nil {
			return err
		}
	}
	// The kernel's terminals are few and all machine's: without a bound of its own
	// one sandbox could take them from every other.
	if !b.spec.Rootless {
		if err := unix.Mount("devpts", "dev/pts", "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620,max="+terminals); err != nil {
			return fmt.Errorf("pts: %w", err)
		}
	}
	size := b.spec.TmpBytes
	if size <= 0 {
		size = 64 << 20
	}
	// Bounded inodes: each is kernel memory whatever its size.
	options := fmt.Sprintf("size=%d,nr_inodes=%d,mode=1777", size, max(size/4096, 1024))
	for _, dir := range []string{"dev/shm", "tmp"} {
		if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
	}
	return nil
}

// files binds the two directories that are the user's. Not recursive: a mount
// that somebody made below a workspace stays out.
func (b builder) files() error {
	if b.spec.Pooled {
		return nil
	}
	for to, from := range map[string]string{"workspace": b.spec.Workspace, "home/sandbox": b.spec.Home} {
		fd, err := unix.Open(from, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("%s: %w", to, err)
		}
		err = bind(fd, to, readWrit, 0)
		unix.Close(fd)
		if err != nil {
			return err
		}
	}
	return nil
}

// caBundle is sandboxd.CABundle, below the new root.
const caBundle = "run/sandboxd/ca.pem"

// certificates shows the host's bundle; it costs no memory of the root.
func (b builder) certificates() error {
	if b.spec.CABundle == "" {
		return nil
	}
	fd, err := unix.Open(b.spec.CABundle, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := os.Mkdir(filepath.Dir(caBundle), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(caBundle, nil, 0o644); err != nil {
		return err
	}
	return bind(fd, caBundle, readOnly|unix.MOUNT_ATTR_NOEXEC, 0)
}

// proc comes last, so that nothing mounted earlier could be reached through it,
// and is covered where it tells of or reaches the machine.
func (b builder) proc() error {
	if err := unix.Mount("proc", "proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return err
	}
	if slices.Contains(b.spec.Without, StepMasks) {
		return nil
	}
	for _, m := range []struct {
		from  string // empty: the same place, read-only
		names []string
	}{
		{"dev/null", []string{"kcore", "keys", "key-users", "kmsg", "kallsyms", "timer_list", "sched_debug", "latency_stats", "sysrq-trigger"}},
		{"var/empty", []string{"acpi", "scsi"}},
		{"", []string{"sys", "irq", "bus", "fs"}},
	} {
		for _, name := range m.names {
			to := "proc/" + name
			if err := cover(m.from, to); err != nil {
				return err
			}
		}
	}
	return nil
}

func cover(from, to string) error {
	if _, err := os.Lstat(to); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	attrs, recursive := uint64(unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC), uint(0)
	if from == "" {
		from, recursive = to, unix.AT_RECURSIVE
	}
	fd, err := unix.Open(from, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return bind(fd, to, attrs, recursive)
}

func (b builder) pivot() error {
	if !b.spec.Pooled {
		if err := seal(); err != nil {
			return err
		}
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return err
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return err
	}
	return unix.Chdir("/")
}

// seal makes the root, which is the current directory, read-only when it is finished;
// what is mounted in it keeps its attributes.
func seal() error {
	return unix.MountSetattr(unix.AT_FDCWD, ".", 0, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
}
