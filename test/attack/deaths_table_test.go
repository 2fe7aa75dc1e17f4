package attack

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"time"

	"sandboxd"
	"sandboxd/test/server"
)

func shell(text string) sandboxd.CommandSpec { return sandboxd.CommandSpec{Shell: text} }

func argv(words ...string) sandboxd.CommandSpec { return sandboxd.CommandSpec{Argv: words} }

// with changes a specification.
func with(spec sandboxd.CommandSpec, changes ...func(*sandboxd.CommandSpec)) sandboxd.CommandSpec {
	for _, change := range changes {
		change(&spec)
	}
	return spec
}

func timeout(s float64) func(*sandboxd.CommandSpec) {
	return func(spec *sandboxd.CommandSpec) { spec.TimeoutS = seconds(s) }
}

func silence(s float64) func(*sandboxd.CommandSpec) {
	return func(spec *sandboxd.CommandSpec) { spec.NoOutputTimeoutS = sandboxd.Seconds(s) }
}

func memory(mib int64) func(*sandboxd.CommandSpec) {
	return func(spec *sandboxd.CommandSpec) { spec.Limits.MemoryBytes = mib << 20 }
}

func pids(n int64) func(*sandboxd.CommandSpec) {
	return func(spec *sandboxd.CommandSpec) { spec.Limits.PIDs = n }
}

func pipes(spec *sandboxd.CommandSpec)    { spec.Wait = sandboxd.WaitPipes }
func terminal(spec *sandboxd.CommandSpec) { spec.TTY = &sandboxd.TTY{Cols: 80, Rows: 24} }
func input(spec *sandboxd.CommandSpec)    { spec.StdinOpen = true }

// exits is a death that is told as the program's own exit.
func exits(name string, code int, spec sandboxd.CommandSpec) death {
	return death{name: name, spec: spec, cause: sandboxd.CauseExit, code: code}
}

// signalled is a death by a signal that the product did not send.
func signalled(name string, sig signalNumber, spec sandboxd.CommandSpec) death {
	return death{name: name, spec: spec, cause: sandboxd.CauseSignal, code: 128 + sig.number, signal: sig.name}
}

func late(name, limit, signal string, spec sandboxd.CommandSpec) death {
	return death{name: name, spec: spec, cause: sandboxd.CauseTimeout, code: 124, signal: signal, limit: limit, remedy: "timeout_s"}
}

func silent(name, limit, signal string, spec sandboxd.CommandSpec) death {
	return death{name: name, spec: spec, cause: sandboxd.CauseNoOutput, code: 124, signal: signal, limit: limit, remedy: "no_output_timeout_s"}
}

func starved(name, limit string, spec sandboxd.CommandSpec) death {
	return death{name: name, spec: spec, cause: sandboxd.CauseMemory, code: 137, signal: "SIGKILL", limit: limit, remedy: "memory_bytes", more: counted}
}

func crowded(name, limit string, code int, spec sandboxd.CommandSpec) death {
	return death{name: name, spec: spec, cause: sandboxd.CausePIDs, code: code, limit: limit, remedy: "limits.pids"}
}

func unstarted(name string, code int, spec sandboxd.CommandSpec) death {
	return death{name: name, spec: spec, cause: sandboxd.CauseStartFailed, code: code}
}

func counted(got outcome) string {
	if got.ending.PeakBytes < 8<<20 || got.ending.PeakSource != "cgroup" {
		return fmt.Sprintf("the peak is %d by %q", got.ending.PeakBytes, got.ending.PeakSource)
	}
	return ""
}

// said wants exactly this output.
func said(stdout, stderr string) func(outcome) string {
	return func(got outcome) string {
		if got.stdout != stdout || got.stderr != stderr {
			return fmt.Sprintf("the output is %q and %q", got.stdout, got.stderr)
		}
		return ""
	}
}

// leaves wants so many processes that still run.
func leaves(n int) func(outcome) string {
	return func(got outcome) string {
		if got.ending.LeftBehind != n || got.ending.WallS > 5 {
			return fmt.Sprintf("%d left behind after %v s", got.ending.LeftBehind, got.ending.WallS)
		}
		return ""
	}
}

func truncated(got outcome) string {
	if got.ending.Truncated < 1<<20 {
		return fmt.Sprintf("%d bytes are told as not kept", got.ending.Truncated)
	}
	return ""
}

// stop asks for the command's end.
func stop(grace sandboxd.Seconds) func(*dying) error {
	return func(d *dying) error {
		began := time.Now()
		cmd, err := d.s.C.StopCommand(context.Background(), d.box, d.id, grace)
		if err == nil && cmd.Ending == nil {
			err = fmt.Errorf("the stop answers %+v", cmd)
		}
		if took := time.Since(began); err == nil && took > grace.Duration()+2*time.Second {
			err = fmt.Errorf("the stop took %v", took)
		}
		return err
	}
}

// stopped is a death that a caller asked for.
func stopped(name, signal string, code int, grace sandboxd.Seconds, spec sandboxd.CommandSpec) death {
	return death{name: name, spec: spec, up: "up", act: stop(grace), cause: sandboxd.CauseStopped, code: code, signal: signal}
}

func send(signals ...string) func(*dying) error {
	return func(d *dying) error {
		for _, name := range signals {
			if err := d.s.C.SignalCommand(context.Background(), d.box, d.id, name); err != nil {
				return err
			}
		}
		return nil
	}
}

// killTwice does not mind that the first signal may have been enough.
func killTwice(d *dying) error {
	err := send("TERM")(d)
	if again := send("KILL")(d); err == nil && sandboxd.ClassOf(again) != sandboxd.ClassConflict {
		err = again
	}
	return err
}

func write(data string) func(*dying) error {
	return func(d *dying) error {
		return d.s.C.WriteStdin(context.Background(), d.box, d.id, []byte(data), false)
	}
}

// fromOutside ends the processes whose command line holds a text, as the machine's
// root can, by a signal.
func fromOutside(sig syscall.Signal, text string) func(*dying) error {
	return func(d *dying) error {
		hit := 0
		for _, pid := range server.Processes(d.box) {
			if strings.Contains(server.CommandLine(pid), text) && syscall.Kill(pid, sig) == nil {
				hit++
			}
		}
		if hit == 0 {
			return fmt.Errorf("no process has %q in its command line", text)
		}
		return nil
	}
}

// everyProcess ends all of a sandbox from outside, its init first.
func everyProcess(d *dying) error {
	for _, pid := range server.Processes(d.box) {
		_ = syscall.Kill(pid, syscall.SIGKILL) // the first takes the others with it
	}
	return nil
}

// theInit ends process 1 of the sandbox.
func theInit(sig syscall.Signal) func(*dying) error {
	return func(d *dying) error {
		for _, pid := range server.Processes(d.box) {
			if server.CommandLine(pid) == "init" {
				return syscall.Kill(pid, sig)
			}
		}
		return fmt.Errorf("there is no init among %v", server.Processes(d.box))
	}
}

// another runs a second command in the sandbox, which must succeed.
func another(text string) func(*dying) error {
	return func(d *dying) error {
		b := &box{s: d.s, id: d.box}
		cmd, _, err := d.s.C.StartCommand(context.Background(), d.box, sandboxd.CommandSpec{Shell: text, Background: true})
		if err != nil {
			return err
		}
		got, err := b.read(cmd.ID, "")
		if err == nil && (got.ending.ExitCode == nil || *got.ending.ExitCode != 0) {
			err = fmt.Errorf("the other command: %+v", got)
		}
		return err
	}
}

func stopSandbox(d *dying) error {
	_, err := d.s.C.Stop(context.Background(), d.box)
	return err
}

func deleteSandbox(d *dying) error { return d.s.C.Delete(context.Background(), d.box) }

// leave starts the command in the foreground and goes away.
func leave(body string) func(*dying) error {
	return func(d *dying) error {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, "POST", "http://"+d.s.Addr+"/v1/sandboxes/"+d.box+"/exec", strings.NewReader(`{"command_id":"`+d.id+`",`+body+`}`))
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+d.s.Key)
		req.Header.Set("Accept", "application/x-ndjson")
		res, err := plain.Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		return d.says("up")
	}
}

type signalNumber struct {
	name   string
	number int
}

// fatal are the signals that end a program which does nothing about them.
var fatal = []signalNumber{
	{"SIGHUP", 1}, {"SIGINT", 2}, {"SIGQUIT", 3}, {"SIGILL", 4}, {"SIGTRAP", 5}, {"SIGABRT", 6}, {"SIGBUS", 7}, {"SIGFPE", 8},
	{"SIGKILL", 9}, {"SIGUSR1", 10}, {"SIGSEGV", 11}, {"SIGUSR2", 12}, {"SIGPIPE", 13}, {"SIGALRM", 14}, {"SIGTERM", 15},
	{"SIGSTKFLT", 16}, {"SIGXCPU", 24}, {"SIGXFSZ", 25}, {"SIGVTALRM", 26}, {"SIGPROF", 27}, {"SIGIO", 29}, {"SIGPWR", 30}, {"SIGSYS", 31},
}

var (
	hup  = fatal[0]
	abrt = fatal[5]
	kill = fatal[8]
	segv = fatal[10]
	pipe = fatal[12]
	alrm = fatal[13]
	term = fatal[14]
	xcpu = fatal[16]
	xfsz = fatal[17]
	sys  = fatal[22]
)

// deaths are those of a server that lives.
func deaths() (all []death) {
	add := func(more ...death) { all = append(all, more...) }

	for _, code := range []int{0, 1, 2, 3, 4, 5, 7, 10, 42, 63, 64, 77, 99, 100, 113, 123, 124, 125, 126, 127, 128, 129, 130, 131, 134, 135, 136, 137, 139, 141, 143, 152, 153, 159, 160, 192, 200, 254, 255} {
		add(exits(fmt.Sprintf("a shell exits with %d", code), code, shell(fmt.Sprintf("exit %d", code))))
	}
	for _, code := range []int{0, 1, 124, 126, 127, 134, 137, 143, 255} {
		add(exits(fmt.Sprintf("a program exits with %d", code), code, argv("./intruder", "exit", fmt.Sprint(code))))
	}
	add(
		death{name: "exit after output", spec: shell("echo out; echo err >&2; exit 3"), cause: "exit", code: 3, more: said("out\n", "err\n")},
		exits("exit of a thread that is not the first", 6, argv("./intruder", "exit-thread", "6")),
		exits("exit in a terminal", 9, with(shell("exit 9"), terminal)),
		exits("exit when its input ends", 0, with(argv("cat"), func(s *sandboxd.CommandSpec) { s.Stdin = []byte("last words") })),
		exits("exit with a timeout that is not reached", 8, with(shell("sleep 0.1; exit 8"), timeout(60))),
		exits("exit while it speaks often enough", 0, with(shell("for i in 1 2 3 4 5 6 7 8 9; do echo $i; sleep 0.2; done"), silence(1.5))),
		exits("a panic", 2, argv("./intruder", "panic")),
		exits("a shell finds no program", 127, shell("no-such-program")),
		exits("a shell may not execute", 126, shell("/etc/passwd")),
		exits("a shell gives too many arguments", 126, shell("exec true $(yes argument | head -c 4000000)")),
		exits("a shell does not understand", 2, shell("if then")),
		exits("a shell without descriptors", 1, with(argv("./intruder", "descriptors-fail"))),
		exits("an address space that is too small", 2, shell("ulimit -v 20000; exec ./intruder eat 100")),
	)

	for _, sig := range fatal {
		add(signalled("it sends itself "+sig.name, sig, shell(fmt.Sprintf("kill -%d $$", sig.number))))
		d := signalled("a caller sends "+sig.name, sig, shell("echo up; exec sleep 1000"))
		d.up, d.act = "up", send(sig.name)
		add(d)
	}
	for _, number := range []int{34, 35, 50, 63, 64} {
		add(signalled(fmt.Sprintf("it sends itself real-time signal %d", number), signalNumber{fmt.Sprintf("SIG%d", number), number}, shell(fmt.Sprintf("kill -%d $$", number))))
	}
	for _, sig := range []signalNumber{fatal[0], fatal[1], fatal[2], fatal[5], fatal[8], fatal[10], fatal[12], fatal[13], fatal[14], fatal[22]} {
		add(exits("a shell tells of a child's "+sig.name, 128+sig.number, shell(fmt.Sprintf(`sh -c 'kill -%d $$'; exit $?`, sig.number))))
	}
	for _, name := range []string{"CHLD", "CONT", "URG", "WINCH"} {
		d := exits("a caller sends "+name+", which ends nothing", 0, shell("echo up; sleep 0.3; exit 0"))
		d.up, d.act = "up", send(name)
		add(d)
	}
	for i, name := range []string{"TERM", "INT", "HUP", "USR1", "USR2", "QUIT"} {
		d := exits("a caller sends "+name+", which it obeys", 40+i, shell(fmt.Sprintf("trap 'exit %d' %s; echo up; while :; do sleep 0.05; done", 40+i, name)))
		d.up, d.act = "up", send(name)
		add(d)
	}
	for _, d := range []death{
		signalled("TERM comes before KILL", term, shell("echo up; exec sleep 1000")),
		signalled("it is halted and killed", kill, shell("echo up; exec sleep 1000")),
		exits("it is halted and goes on", 5, shell("echo up; sleep 0.3; exit 5")),
		signalled("another command kills it", kill, shell("echo $$ >killed; echo up; exec sleep 1000")),
		signalled("the machine's root kills it", kill, shell("echo up; exec sleep 1000.125")),
		signalled("the machine's root ends it", term, shell("echo up; exec sleep 1000.25")),
		signalled("Ctrl-C", fatal[1], with(shell("echo up; exec sleep 1000"), terminal)),
		signalled("Ctrl-backslash", fatal[2], with(shell("echo up; exec sleep 1000"), terminal)),
	} {
		d.up = "up"
		d.act = map[string]func(*dying) error{
			"TERM comes before KILL": killTwice, "it is halted and killed": send("STOP", "KILL"), "it is halted and goes on": send("STOP", "CONT"),
			"another command kills it": another("kill -9 $(cat killed)"), "the machine's root kills it": fromOutside(syscall.SIGKILL, "1000.125"),
			"the machine's root ends it": fromOutside(syscall.SIGTERM, "1000.25"), "Ctrl-C": write("\x03"), "Ctrl-backslash": write("\x1c"),
		}[d.name]
		add(d)
	}
	add(
		signalled("a call that its own filter forbids", sys, argv("./intruder", "forbidden")),
		signalled("a pipe that nobody reads", pipe, argv("./intruder", "broken-pipe")),
		signalled("its own alarm clock", alrm, argv("./intruder", "alarm")),
		signalled("its own limit of processor time", xcpu, shell("ulimit -S -t 1; while :; do :; done")),
		signalled("its own hard limit of processor time", kill, shell("ulimit -t 1; while :; do :; done")),
		signalled("its own limit of a file's size", xfsz, shell("ulimit -f 8; exec dd if=/dev/zero of=large bs=64k count=4")),
		exits("a child at its limit of a file's size", 153, shell("ulimit -f 8; dd if=/dev/zero of=large2 bs=64k count=4; exit $?")),
		signalled("SEGV of a program in a terminal", segv, with(shell("kill -SEGV $$"), terminal)),
		signalled("a hangup of all its processes", hup, shell("sleep 1000 & kill -HUP 0")),
		signalled("its own KILL, with memory to spare", kill, with(shell("kill -KILL $$"), memory(64))),
	)

	add(
		late("time", "0.4 s", "SIGTERM", with(shell("sleep 1000"), timeout(0.4))),
		late("time of a program", "0.25 s", "SIGTERM", with(argv("sleep", "1000"), timeout(0.25))),
		late("time, TERM ignored", "0.4 s", "SIGKILL", with(shell("trap '' TERM INT HUP; while :; do sleep 1; done"), timeout(0.4))),
		late("time, TERM obeyed with 0", "0.4 s", "", with(shell("trap 'exit 0' TERM; while :; do sleep 0.05; done"), timeout(0.4))),
		late("time, TERM obeyed with 7", "0.4 s", "", with(shell("trap 'exit 7' TERM; while :; do sleep 0.05; done"), timeout(0.4))),
		late("time of twenty children", "0.4 s", "SIGTERM", with(shell("for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do sleep 1000 & done; exec sleep 1000"), timeout(0.4))),
		late("time of a tree of sessions", "0.4 s", "SIGTERM", with(shell("setsid sh -c 'setsid sleep 1000 & sleep 1000' & exec sleep 1000"), timeout(0.4))),
		late("time while it is halted", "0.4 s", "SIGKILL", with(shell("kill -STOP $$"), timeout(0.4))),
		late("time in a busy loop", "0.4 s", "SIGTERM", with(shell("while :; do :; done"), timeout(0.4))),
		late("time in a terminal", "0.4 s", "SIGTERM", with(argv("sleep", "1000"), timeout(0.4), terminal)),
		late("time while it waits for input", "0.4 s", "SIGTERM", with(argv("cat"), timeout(0.4), input)),
		late("time while it floods", "0.4 s", "SIGTERM", with(shell("exec yes"), timeout(0.4), func(s *sandboxd.CommandSpec) { s.OutputLimit = 1 << 20 })),
		late("time of a child that holds the pipe", "0.4 s", "", with(shell("sleep 1000 & echo done"), timeout(0.4), pipes)),
		late("time before silence", "0.4 s", "SIGTERM", with(shell("sleep 1000"), timeout(0.4), silence(20))),
		late("time of one that has children killed for memory", "0.6 s", "SIGTERM", with(shell("./intruder eat 500; exec sleep 1000"), timeout(0.6), memory(32))),
		silent("silence", "0.4 s", "SIGTERM", with(shell("echo a; sleep 1000"), silence(0.4))),
		silent("silence from the beginning", "0.4 s", "SIGTERM", with(argv("sleep", "1000"), silence(0.4))),
		silent("silence, TERM ignored", "0.4 s", "SIGKILL", with(shell("trap '' TERM; while :; do sleep 1; done"), silence(0.4))),
		silent("silence, TERM obeyed with 0", "0.4 s", "", with(shell("trap 'exit 0' TERM; while :; do sleep 0.05; done"), silence(0.4))),
		silent("silence in a terminal", "0.4 s", "SIGTERM", with(argv("sleep", "1000"), silence(0.4), terminal)),
		silent("silence at a prompt", "0.4 s", "SIGTERM", with(shell("printf 'name? '; read name"), silence(0.4), input)),
		silent("silence before the time", "0.4 s", "SIGTERM", with(shell("sleep 1000"), silence(0.4), timeout(20))),
		silent("silence in a busy loop", "0.4 s", "SIGTERM", with(shell("while :; do :; done"), silence(0.4))),
	)

	add(
		stopped("a stop", "SIGTERM", 143, 5, shell("echo up; exec sleep 1000")),
		stopped("a stop without grace", "SIGKILL", 137, 0, shell("echo up; exec sleep 1000")),
		stopped("a stop, TERM ignored", "SIGKILL", 137, 0.2, shell("trap '' TERM; echo up; while :; do sleep 1; done")),
		stopped("a stop, TERM obeyed with 0", "", 0, 5, shell("trap 'exit 0' TERM; echo up; while :; do sleep 0.05; done")),
		stopped("a stop, TERM obeyed with 3", "", 3, 5, shell("trap 'exit 3' TERM; echo up; while :; do sleep 0.05; done")),
		stopped("a stop of fifty children", "SIGTERM", 143, 5, shell("i=0; while [ $i -lt 50 ]; do sleep 1000 & i=$((i+1)); done; echo up; exec sleep 1000")),
		stopped("a stop while it is halted", "SIGKILL", 137, 0.2, shell("(sleep 0.2; echo up) & kill -STOP $$")),
		stopped("a stop in a terminal", "SIGTERM", 143, 5, with(shell("echo up; exec sleep 1000"), terminal)),
		stopped("a stop while it waits for input", "SIGTERM", 143, 5, with(shell("echo up; exec cat"), input)),
		stopped("a stop while it floods", "SIGTERM", 143, 5, with(shell("echo up; exec yes"), func(s *sandboxd.CommandSpec) { s.OutputLimit = 1 << 20 })),
		stopped("a stop in a busy loop", "SIGTERM", 143, 5, shell("echo up; while :; do :; done")),
		stopped("a stop of a child that holds the pipe", "", 0, 0.2, with(shell("(sleep 0.2; echo up; exec sleep 1000) & exit 0"), pipes)),
		death{name: "two stops at once", spec: shell("echo up; exec sleep 1000"), up: "up", cause: "stopped", code: 143, signal: "SIGTERM", act: func(d *dying) error {
			second := make(chan error, 1)
			go func() { second <- stop(5)(d) }()
			if err := stop(5)(d); err != nil {
				return err
			}
			return <-second
		}},
		death{name: "a stop after the end", spec: shell("exit 11"), cause: "exit", code: 11, act: func(d *dying) error {
			if err := d.ended(); err != nil {
				return err
			}
			return stop(0)(d)
		}},
		death{name: "its caller went away", ask: leave(`"shell":"echo up; exec sleep 1000"`), cause: "stopped", code: 143, signal: "SIGTERM"},
		death{name: "nobody follows it", spec: with(shell("sleep 1000"), func(s *sandboxd.CommandSpec) { s.OrphanAfterS = 0.4 }), unwatched: true, cause: "orphaned", code: 143, signal: "SIGTERM", remedy: "background"},
	)

	add(
		starved("memory in one stride", "67108864", with(argv("./intruder", "eat", "500"), memory(64))),
		starved("little memory in one stride", "16777216", with(argv("./intruder", "eat", "500"), memory(16))),
		starved("memory, megabyte by megabyte", "33554432", with(argv("./intruder", "eat-slowly", "500"), memory(32))),
		starved("memory of a shell", "33554432", with(shell(`x=0123456789abcdef; while :; do x=$x$x; done`), memory(32))),
		starved("memory of dd", "33554432", with(argv("dd", "if=/dev/zero", "of=/dev/null", "bs=300M", "count=1"), memory(32))),
		starved("memory of tail", "33554432", with(argv("tail", "/dev/zero"), memory(32))),
		starved("memory of files in /dev/shm", "33554432", with(shell("exec dd if=/dev/zero of=/dev/shm/full bs=1M count=60"), memory(32))),
		starved("memory of files in /tmp", "33554432", with(shell("exec dd if=/dev/zero of=/tmp/full bs=1M count=60"), memory(32))),
		starved("memory of four threads", "67108864", with(argv("./intruder", "eat-in-threads", "4", "200"), memory(64))),
		starved("memory in a terminal", "67108864", with(argv("./intruder", "eat", "500"), memory(64), terminal)),
		death{name: "memory of the whole sandbox", alone: true, limits: sandboxd.Limits{MemoryBytes: 128 << 20}, spec: argv("./intruder", "eat", "1000"), cause: "out_of_memory", code: 137, signal: "SIGKILL", limit: "sandbox", remedy: "memory_bytes", more: counted},
		death{name: "memory of the sandbox, below the command's limit", alone: true, limits: sandboxd.Limits{MemoryBytes: 128 << 20}, spec: with(argv("./intruder", "eat", "1000"), memory(1000)), cause: "out_of_memory", code: 137, signal: "SIGKILL", limit: "134217728", remedy: "memory_bytes", more: counted},
		death{name: "memory that another command takes", alone: true, limits: sandboxd.Limits{MemoryBytes: 128 << 20}, spec: shell("echo up; sleep 1; exit 12"), up: "up", act: another("./intruder eat 1000; test $? = 137"), cause: "exit", code: 12},
		death{name: "memory of a child, which the leader tells", spec: with(shell("./intruder eat 500; exit $?"), memory(64)), cause: "out_of_memory", code: 137, limit: "67108864", remedy: "memory_bytes", more: counted},
		exits("memory of a child, which the leader survives", 0, with(shell("./intruder eat 500; echo survived"), memory(64))),
		exits("memory of children, which the leader survives", 0, with(argv("./intruder", "eat-in-children", "4", "300"), memory(64))),
		exits("memory of a child, and then a failure of its own", 4, with(shell("./intruder eat 500; exit 4"), memory(64))),
		signalled("memory of a child, and then TERM", term, with(shell("./intruder eat 500; kill -TERM $$"), memory(64))),
		death{name: "V8 gives up", spec: shell("echo 'FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory' >&2; kill -ABRT $$"), cause: "out_of_memory", code: 134, signal: "SIGABRT", limit: "JavaScript heap", remedy: "--max-old-space-size"},
		death{name: "V8 of a child gives up", spec: shell("echo 'FATAL ERROR: JavaScript heap out of memory' >&2; exit 134"), cause: "out_of_memory", code: 134, limit: "JavaScript heap", remedy: "--max-old-space-size"},
		exits("V8's words without its end", 1, shell("echo 'JavaScript heap out of memory' >&2; exit 1")),
		exits("V8's words quoted by what is well", 0, shell("echo 'FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory'")),
		signalled("an abort that mentions the heap", abrt, shell("echo 'see: JavaScript heap out of memory' >&2; kill -ABRT $$")),
		signalled("V8's end without its words", abrt, shell("echo 'out of memory' >&2; kill -ABRT $$")),
	)

	add(
		crowded("processes", "30", 1, with(argv("./intruder", "fork"), pids(30))),
		crowded("few processes", "12", 1, with(argv("./intruder", "fork"), pids(12))),
		crowded("processes of a shell", "20", 2, with(shell("while :; do sleep 1000 & done"), pids(20))),
		crowded("processes in a terminal", "30", 1, with(argv("./intruder", "fork"), pids(30), terminal)),
		death{name: "processes of the whole sandbox", alone: true, limits: sandboxd.Limits{PIDs: 40}, spec: argv("./intruder", "fork"), cause: "process_limit", code: 1, limit: "40", remedy: "limits.pids"},
		exits("no process left, and well all the same", 0, with(shell("./intruder fork; exit 0"), pids(30))),
		signalled("no process left, and TERM", term, with(shell("./intruder fork; kill -TERM $$"), pids(30))),
		crowded("no process left, and a failure", "30", 9, with(shell("./intruder fork; exit 9"), pids(30))),
	)

	const script = "exec 2>/dev/null; "
	prepared := func(name string, code int, prepare, program string) death {
		return death{name: name, cause: "start_failed", code: code, ask: func(d *dying) error {
			if err := another(script + prepare)(d); err != nil {
				return err
			}
			_, _, err := d.s.C.StartCommand(context.Background(), d.box, sandboxd.CommandSpec{ID: d.id, Argv: []string{program}, Background: true})
			return err
		}}
	}
	add(
		unstarted("no such program", 127, argv("no-such-program")),
		unstarted("no such program at a place", 127, argv("/usr/bin/no-such-program")),
		unstarted("no such program in the workspace", 127, argv("./no-such-program")),
		unstarted("no such program, with a terminal", 127, with(argv("no-such-program"), terminal)),
		unstarted("not executable", 126, argv("/etc/passwd")),
		unstarted("a directory", 126, argv("/workspace")),
		unstarted("below a file", 126, argv("/etc/passwd/program")),
		unstarted("a name that is too long", 126, argv("/"+strings.Repeat("n", 300))),
		unstarted("nowhere to look", 127, with(argv("true"), func(s *sandboxd.CommandSpec) { s.Env = map[string]string{"PATH": "/nowhere"} })),
		unstarted("no such directory", 126, with(argv("true"), func(s *sandboxd.CommandSpec) { s.Cwd = "nowhere" })),
		unstarted("a directory that is a file", 126, with(argv("true"), func(s *sandboxd.CommandSpec) { s.Cwd = "/etc/passwd" })),
		unstarted("a directory of a shell that is not there", 126, with(shell("exit 0"), func(s *sandboxd.CommandSpec) { s.Cwd = "/nowhere" })),
		prepared("a script whose interpreter is not there", 127, "printf '#!/no/such/interpreter\\n' >script1; chmod 755 script1", "./script1"),
		prepared("a text that is no script", 126, "echo exit 0 >script2; chmod 755 script2", "./script2"),
		prepared("an empty program", 126, ": >empty; chmod 755 empty", "./empty"),
		prepared("a program that is damaged", 126, "head -c 20 intruder >damaged; chmod 755 damaged", "./damaged"),
		prepared("a link to nothing", 127, "ln -s /nowhere dangling", "./dangling"),
		prepared("a link to itself", 126, "ln -s circle circle", "./circle"),
		prepared("a pipe by name", 126, "mkfifo fifo; chmod 755 fifo", "./fifo"),
		prepared("a script without the right", 126, "echo '#!/bin/sh' >script3; chmod 644 script3", "./script3"),
		prepared("a directory without the right", 126, "mkdir closed; cp /bin/true closed/; chmod 0 closed", "./closed/true"),
	)

	add(
		death{name: "more output than is kept", spec: with(shell("head -c 4000000 /dev/zero; exit 13"), func(s *sandboxd.CommandSpec) { s.OutputLimit = 1 << 20 }), cause: "exit", code: 13, more: truncated},
		death{name: "more errors than are kept", spec: with(shell("head -c 4000000 /dev/zero >&2; kill -TERM $$"), func(s *sandboxd.CommandSpec) { s.OutputLimit = 1 << 20 }), cause: "signal", code: 143, signal: "SIGTERM", more: truncated},
		death{name: "one child is left", spec: shell("sleep 1000 & echo done"), cause: "exit", code: 0, more: leaves(1)},
		death{name: "ten children are left", spec: shell("for i in 1 2 3 4 5 6 7 8 9 10; do setsid sleep 1000 & done; exit 14"), cause: "exit", code: 14, more: leaves(10)},
		death{name: "a child is left by one that is killed", spec: shell("setsid sleep 1000 & kill -KILL $$"), cause: "signal", code: 137, signal: "SIGKILL", more: leaves(1)},
		death{name: "no child is left by a stop", spec: shell("setsid sleep 1000 & echo up; exec sleep 1000"), up: "up", act: stop(5), cause: "stopped", code: 143, signal: "SIGTERM", more: leaves(0)},
		death{name: "no child is left by a timeout", spec: with(shell("setsid sleep 1000 & exec sleep 1000"), timeout(0.4)), cause: "timeout", code: 124, signal: "SIGTERM", limit: "0.4 s", remedy: "timeout_s", more: leaves(0)},
	)

	running := shell("setsid sleep 1000 & echo up; exec sleep 1000")
	for name, act := range map[string]func(*dying) error{"every process is killed": everyProcess, "the init is killed": theInit(syscall.SIGKILL)} {
		add(death{name: name + " under it", spec: running, up: "up", act: act, ends: true, cause: "environment", code: unknownCode, remedy: "start the sandbox"})
	}
	add(
		death{name: "the sandbox is stopped under it", spec: running, up: "up", act: stopSandbox, ends: true, cause: "stopped", code: 137, signal: "SIGKILL"},
		death{name: "the sandbox is stopped under its terminal", spec: with(running, terminal), up: "up", act: stopSandbox, ends: true, cause: "stopped", code: 137, signal: "SIGKILL"},
		death{name: "the sandbox is deleted under it", spec: running, up: "up", act: deleteSandbox, gone: true, cause: "stopped", code: 137, signal: "SIGKILL"},
		death{name: "the sandbox is deleted under its flood", spec: shell("echo up; exec yes"), up: "up", act: deleteSandbox, gone: true, cause: "stopped", code: 137, signal: "SIGKILL"},
	)
	return all
}

// round is a set of commands that are under way when the server is killed.
type round struct {
	deaths    []death
	before    func([]*dying) // until the server is killed
	meanwhile func()         // until there is one again
}

// killedRounds are deaths of a server that is killed.
func killedRounds() []round {
	running := round{before: func([]*dying) {}, meanwhile: func() {}}
	add := func(d death, act func(*dying) error) {
		d.name, d.up, d.act = "the server is killed, then "+d.name, "up", act
		running.deaths = append(running.deaths, d)
	}
	add(death{name: "exit", spec: shell("echo up; sleep 1; echo two; exit 5"), cause: "exit", code: 5, more: said("up\ntwo\n", "")}, nil)
	add(exits("exit that leaves a child", 0, shell("echo up; sleep 1; setsid sleep 1000 & exit 0")), nil)
	add(exits("a shell tells of a child's KILL", 137, shell("echo up; sleep 1; sh -c 'kill -9 $$'; exit $?")), nil)
	add(exits("no program", 127, shell("echo up; sleep 1; no-such-program")), nil)
	add(signalled("KILL by itself", kill, shell("echo up; sleep 1; kill -KILL $$")), nil)
	add(signalled("TERM by itself", term, shell("echo up; sleep 1; kill -TERM $$")), nil)
	add(signalled("SEGV by itself", segv, shell("echo up; sleep 1; kill -SEGV $$")), nil)
	add(signalled("a caller's HUP", hup, shell("echo up; exec sleep 1000")), send("HUP"))
	add(signalled("the machine's root", kill, shell("echo up; exec sleep 1000.375")), fromOutside(syscall.SIGKILL, "1000.375"))
	add(signalled("Ctrl-C", fatal[1], with(shell("echo up; exec sleep 1000"), terminal)), write("\x03"))
	add(exits("input", 15, with(shell("echo up; read line; exit $line"), input)), write("15\n"))
	add(starved("memory", "67108864", with(shell("echo up; sleep 1; exec ./intruder eat 500"), memory(64))), nil)
	add(crowded("processes", "30", 1, with(shell("echo up; sleep 1; exec ./intruder fork"), pids(30))), nil)
	add(late("time", "1.5 s", "SIGTERM", with(shell("echo up; exec sleep 1000"), timeout(1.5))), nil)
	add(silent("silence", "1 s", "SIGTERM", with(shell("echo up; exec sleep 1000"), silence(1))), nil)
	add(death{name: "a stop", spec: shell("echo up; exec sleep 1000"), cause: "stopped", code: 143, signal: "SIGTERM"}, stop(5))
	add(death{name: "a stop, TERM ignored", spec: shell("trap '' TERM; echo up; while :; do sleep 1; done"), cause: "stopped", code: 137, signal: "SIGKILL"}, stop(0.2))
	add(death{name: "more output than is kept", spec: with(shell("echo up; sleep 1; head -c 4000000 /dev/zero; exit 16"), func(s *sandboxd.CommandSpec) { s.OutputLimit = 1 << 20 }), cause: "exit", code: 16, more: truncated}, nil)
	add(death{name: "the sandbox is stopped", spec: shell("echo up; exec sleep 1000"), ends: true, cause: "stopped", code: 137, signal: "SIGKILL"}, stopSandbox)
	add(death{name: "the sandbox is deleted", spec: shell("echo up; exec sleep 1000"), gone: true, cause: "stopped", code: 137, signal: "SIGKILL"}, deleteSandbox)
	add(death{name: "the init is killed", spec: shell("echo up; exec sleep 1000"), ends: true, cause: "environment", code: unknownCode, remedy: "start the sandbox"}, theInit(syscall.SIGKILL))

	absent := round{meanwhile: func() { <-time.After(1500 * time.Millisecond) }}
	var inits []*dying
	absent.before = func(all []*dying) {
		for _, d := range all {
			if d.ends {
				inits = append(inits, d)
			}
		}
	}
	wait := absent.meanwhile
	absent.meanwhile = func() {
		for _, d := range inits {
			_ = theInit(syscall.SIGKILL)(d)
		}
		wait()
	}
	gone := func(d death) {
		d.name, d.up = "while there is no server, "+d.name, "up"
		absent.deaths = append(absent.deaths, d)
	}
	gone(exits("exit", 6, shell("echo up; sleep 0.5; exit 6")))
	gone(exits("exit well", 0, shell("echo up; sleep 0.5")))
	gone(exits("exit before its time", 8, with(shell("echo up; sleep 0.5; exit 8"), timeout(1.2))))
	gone(exits("exit behind more output than the init holds", 17, shell("echo up; sleep 0.5; head -c 3000000 /dev/zero; exit 17")))
	gone(death{name: "exit with a child left", spec: shell("echo up; sleep 0.5; setsid sleep 1000 & exit 18"), cause: "exit", code: 18, more: leaves(1)})
	gone(signalled("KILL by itself", kill, shell("echo up; sleep 0.5; kill -KILL $$")))
	gone(signalled("ABRT by itself", abrt, shell("echo up; sleep 0.5; kill -ABRT $$")))
	gone(starved("memory", "67108864", with(shell("echo up; sleep 0.5; exec ./intruder eat 500"), memory(64))))
	gone(crowded("processes", "30", 1, with(shell("echo up; sleep 0.5; exec ./intruder fork"), pids(30))))
	gone(late("time", "0.8 s", "SIGTERM", with(shell("echo up; exec sleep 1000"), timeout(0.8))))
	gone(late("time, TERM ignored", "0.8 s", "SIGKILL", with(shell("trap '' TERM; echo up; while :; do sleep 0.5; done"), timeout(0.8))))
	gone(silent("silence", "0.8 s", "SIGTERM", with(shell("echo up; exec sleep 1000"), silence(0.8))))
	gone(death{name: "the init is killed", spec: shell("echo up; exec sleep 1000"), ends: true, cause: "environment", code: unknownCode, remedy: "start the sandbox"})

	over := round{meanwhile: func() {}, before: func(all []*dying) {
		for _, d := range all {
			_ = d.ended() // judged later
		}
	}}
	ended := func(d death) {
		d.name = "after it the server is killed: " + d.name
		over.deaths = append(over.deaths, d)
	}
	ended(exits("exit", 19, shell("exit 19")))
	ended(signalled("TERM by itself", term, shell("kill -TERM $$")))
	ended(starved("memory", "67108864", with(argv("./intruder", "eat", "500"), memory(64))))
	ended(crowded("processes", "30", 1, with(argv("./intruder", "fork"), pids(30))))
	ended(late("time", "0.3 s", "SIGTERM", with(argv("sleep", "1000"), timeout(0.3))))
	ended(silent("silence", "0.3 s", "SIGTERM", with(argv("sleep", "1000"), silence(0.3))))
	ended(unstarted("no such program", 127, argv("no-such-program")))

	// Some end before the server is killed, some while there is none, some later.
	amid := round{meanwhile: func() {}, before: func([]*dying) { <-time.After(50 * time.Millisecond) }}
	for i := range 24 {
		code := 20 + i
		d := exits(fmt.Sprintf("the server is killed amid endings, exit %d", code), code, shell(fmt.Sprintf("echo up; sleep 0.%02d; exit %d", 2*i, code)))
		if i%3 == 1 {
			d = signalled(fmt.Sprintf("the server is killed amid endings, signal %d", i), kill, shell(fmt.Sprintf("echo up; sleep 0.%02d; kill -KILL $$", 2*i)))
		}
		d.up = "up"
		amid.deaths = append(amid.deaths, d)
	}
	return []round{running, absent, over, amid}
}
