package spawn

import (
	"testing"

	"golang.org/x/sys/unix"
)

// judge runs a filter's program over one call, as the kernel would.
func judge(t *testing.T, code []unix.SockFilter, number uint64, args ...uint64) uint32 {
	t.Helper()
	data := make([]uint32, 16)
	data[0] = uint32(number)
	for i, a := range args {
		data[4+2*i], data[5+2*i] = uint32(a), uint32(a>>32)
	}
	var acc uint32
	for at := 0; at < len(code); at++ {
		switch i := code[at]; i.Code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			acc = data[i.K/4]
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			if acc == i.K {
				at += int(i.Jt)
			} else {
				at += int(i.Jf)
			}
		case unix.BPF_RET | unix.BPF_K:
			return i.K
		default:
			t.Fatalf("instruction %d is of no known kind", at)
		}
	}
	t.Fatal("the program ends without an answer")
	return 0
}

// Who does not have the whole key cannot set the mark; everything else is as it was.
func TestMarkIsKept(t *testing.T) {
	const value, high = 0x7f0000001000, 1 << 40
	k := key{0x1122334455667788, 0x99aabbccddeeff00}
	code := keepMark(k)
	for name, test := range map[string]struct {
		number  uint64
		args    []uint64
		refused bool
	}{
		"another call":                {unix.SYS_GETPID, []uint64{0, rlimitLocks, value}, false},
		"setrlimit of it":             {unix.SYS_SETRLIMIT, []uint64{rlimitLocks, value, 0, 0, k[0], k[1]}, true},
		"setrlimit of another":        {unix.SYS_SETRLIMIT, []uint64{unix.RLIMIT_NOFILE, value}, false},
		"prlimit of another":          {unix.SYS_PRLIMIT64, []uint64{0, unix.RLIMIT_NOFILE, value}, false},
		"prlimit that asks":           {unix.SYS_PRLIMIT64, []uint64{0, rlimitLocks, 0, value}, false},
		"prlimit that sets":           {unix.SYS_PRLIMIT64, []uint64{0, rlimitLocks, value}, true},
		"with a number in disguise":   {unix.SYS_PRLIMIT64, []uint64{0, rlimitLocks | high, value}, true},
		"from a low address":          {unix.SYS_PRLIMIT64, []uint64{0, rlimitLocks, 4096}, true},
		"from a high address":         {unix.SYS_PRLIMIT64, []uint64{0, rlimitLocks, high}, true},
		"with the key":                {unix.SYS_PRLIMIT64, []uint64{0, rlimitLocks, value, 0, k[0], k[1]}, false},
		"with half of it":             {unix.SYS_PRLIMIT64, []uint64{0, rlimitLocks, value, 0, k[0], 0}, true},
		"with the other half":         {unix.SYS_PRLIMIT64, []uint64{0, rlimitLocks, value, 0, 0, k[1]}, true},
		"with a key of another":       {unix.SYS_PRLIMIT64, []uint64{0, rlimitLocks, value, 0, k[0], k[1] ^ 1}, true},
		"with a key that is close":    {unix.SYS_PRLIMIT64, []uint64{0, rlimitLocks, value, 0, k[0] ^ high, k[1]}, true},
		"with the halves in exchange": {unix.SYS_PRLIMIT64, []uint64{0, rlimitLocks, value, 0, k[1], k[0]}, true},
	} {
		want := uint32(unix.SECCOMP_RET_ALLOW)
		if test.refused {
			want = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
		}
		if got := judge(t, code, test.number, test.args...); got != want {
			t.Errorf("%s: answer %#x, want %#x", name, got, want)
		}
	}
}
