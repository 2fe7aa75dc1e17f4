package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"sandboxd/internal/isolate/prober/act"
)

// acts are what the prober does when its first argument says so, with those that
// follow. All but hold and count print one JSON object.
var acts = map[string]func(args []string){
	"hold": func([]string) { act.Hold() },
	// count N prints 1 to N, a line every five milliseconds.
	"count": func(args []string) {
		tick := time.NewTicker(5 * time.Millisecond)
		for i := range number(args, 0) {
			fmt.Println(i + 1)
			<-tick.C
		}
	},
	// fork N, eat MIB and descriptors N take so much and no more. What was
	// refused is a failure.
	"fork": func(args []string) {
		made, err := act.Fork(number(args, 0))
		taken(made, err)
	},
	"eat": func(args []string) {
		mib := number(args, 0)
		err := act.Eat(mib << 20)
		if err != nil {
			mib = 0
		}
		taken(mib, err)
	},
	"descriptors": func(args []string) {
		opened, err := act.Descriptors(number(args, 0))
		taken(opened, err)
	},
	// fill DIR MIB writes a file of that size.
	"fill": func(args []string) {
		f, err := os.Create(filepath.Join(args[0], ".fill"))
		wrote, block := 0, make([]byte, 1<<20)
		for ; err == nil && wrote < number(args, 1); wrote++ {
			if _, err = f.Write(block); err != nil {
				break
			}
		}
		if f != nil {
			os.Remove(f.Name())
		}
		taken(wrote, err)
	},
	// dial NETWORK ADDRESS... says of each address whether somebody is there.
	"dial": func(args []string) {
		// At once: those that nobody answers for are waited for.
		answers := make(chan [2]string)
		for _, address := range args[1:] {
			go func() {
				_, err := act.Dial(args[0], address)
				answers <- [2]string{address, outcome(err)}
			}()
		}
		found := map[string]string{}
		for range args[1:] {
			answer := <-answers
			found[answer[0]] = answer[1]
		}
		say(found)
	},
	"meet": meet,
	"look": look,
}

func number(args []string, i int) int {
	n, err := strconv.Atoi(args[i])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	return n
}

func taken(n int, err error) {
	say(map[string]string{"taken": strconv.Itoa(n), "outcome": outcome(err)})
	if err != nil {
		os.Exit(1)
	}
}

// The ways in which programs of one machine find each other. mark names them.
func meet(args []string) {
	mark := args[0]
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	fail(err)
	abstract, err := net.Listen("unix", "@"+mark)
	fail(err)
	named, err := net.Listen("unix", "/tmp/"+mark)
	fail(err)
	for _, l := range []net.Listener{tcp, abstract, named} {
		go func() { _ = act.Greet(l) }()
	}
	fail(act.PutSegment(segmentKey))
	for _, dir := range []string{"/tmp", "/dev/shm"} {
		fail(os.WriteFile(filepath.Join(dir, mark+".file"), nil, 0o644))
	}
	say(map[string]string{"tcp": tcp.Addr().String()})
	act.Hold()
}

const segmentKey = 4711

// look MARK TCP tries to find what meet has put up.
func look(args []string) {
	mark, found := args[0], map[string]string{}
	for name, where := range map[string][2]string{"loopback port": {"tcp", args[1]}, "abstract socket": {"unix", "@" + mark}, "named socket": {"unix", "/tmp/" + mark}} {
		_, err := act.Dial(where[0], where[1])
		found[name] = outcome(err)
	}
	found["shared memory"] = outcome(act.FindSegment(segmentKey))
	for _, dir := range []string{"/tmp", "/dev/shm"} {
		_, err := os.Stat(filepath.Join(dir, mark+".file"))
		found["file in "+dir] = outcome(err)
	}
	say(found)
}
