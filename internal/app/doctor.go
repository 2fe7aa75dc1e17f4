package app

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"sandboxd"
	"sandboxd/internal/app/datadir"
	"sandboxd/internal/cli"
)

// checkup is what doctor finds.
type checkup struct {
	Data    []sandboxd.LevelLine `json:"data"`
	Drivers []driverCheckup      `json:"drivers"`
}

type driverCheckup struct {
	Name string `json:"name"`
	sandboxd.Fingerprint
}

// doctor looks at the machine without changing it, and without a server.
func doctor(ctx context.Context, p Process, o cli.DoctorOptions) error {
	if o.Host != "" {
		return doctorHost(ctx, p, o.Host, o.JSON)
	}
	data := o.Data
	if data == "" {
		data = datadir.Default(os.Geteuid(), p.Getenv)
	}
	found := checkup{Data: checkData(data)}
	scratch, err := os.MkdirTemp("", "sandboxd-doctor-")
	if err != nil {
		return sandboxd.Errorf(sandboxd.ClassUnavailable, "no scratch directory: %v", err).WithHint("set TMPDIR to one that can be written")
	}
	defer os.RemoveAll(scratch)
	works, safe := false, false
	cfg := driverConfig{Data: scratch, Engine: p.Getenv("DOCKER_HOST"), Bridge: true, Log: logger(io.Discard, "text")}
	for _, c := range examine(ctx, realDrivers, cfg) {
		if c.err != nil {
			c.found.Reason = c.err.Error()
		} else if err := c.driver.Close(); err != nil {
			return err
		}
		works = works || c.found.Works
		safe = safe || c.name == "process" && c.found.Capabilities.OwnGroup && os.Geteuid() == 0
		found.Drivers = append(found.Drivers, driverCheckup{c.name, c.found})
	}
	if line, supervised := supervision(ctx, data, safe); supervised {
		found.Data = append(found.Data, line)
	}
	if err := found.print(p.Stdout, o.JSON); err != nil {
		return err
	}
	if !works {
		return sandboxd.Errorf(sandboxd.ClassUnavailable, "no driver works on this machine").
			WithHint("each line marked NEEDED above says what to install or change")
	}
	return nil
}

func (c checkup) print(w io.Writer, asJSON bool) error {
	if asJSON {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(c)
	}
	fmt.Fprintln(w, "data directory")
	printLines(w, c.Data)
	for _, d := range c.Drivers {
		verdict := "works"
		if !d.Works {
			verdict = "does not work: " + d.Reason
		}
		fmt.Fprintf(w, "driver %s: %s\n", d.Name, verdict)
		if !d.Works && d.Hint != "" {
			fmt.Fprintf(w, "  hint: %s\n", d.Hint)
		}
		printLines(w, d.Level)
	}
	return nil
}

func printLines(w io.Writer, lines []sandboxd.LevelLine) {
	for _, l := range lines {
		mark := "ok"
		switch {
		case !l.OK && l.Needed:
			mark = "NEEDED"
		case !l.OK:
			mark = "missing"
		}
		text := fmt.Sprintf("  %-8s %-20s %s", mark, l.Name, l.Detail)
		if !l.OK && l.Why != "" {
			text += " - " + l.Why
		}
		fmt.Fprintln(w, strings.TrimRight(text, " "))
	}
}

// checkData looks at a data directory as a server at its start would, and leaves
// it as it is.
func checkData(path string) []sandboxd.LevelLine {
	var lines []sandboxd.LevelLine
	line := func(name string, ok bool, detail, why string) {
		lines = append(lines, sandboxd.LevelLine{Name: name, OK: ok, Detail: detail, Why: why})
	}
	info, err := os.Stat(path)
	switch {
	case os.IsNotExist(err):
		line("path", true, path+" is made by the first start", "")
	case err != nil:
		line("path", false, err.Error(), "name another with --data")
	case !info.IsDir():
		line("path", false, path+" is no directory", "name another with --data")
	default:
		line("path", true, path, "")
		line("private", info.Mode().Perm()&0o077 == 0, fmt.Sprintf("mode %04o", info.Mode().Perm()), "other users can look in; chmod 700")
		line("writable", unix.Access(path, unix.W_OK) == nil, "", "this user cannot write there")
		_, err := datadir.ReadSecret(path + "/" + datadir.TokenFile)
		line("API key", err == nil, datadir.TokenFile, "the first start makes it")
		lines = append(lines, space(path))
	}
	line("HOME limit", true, "measured: commands that run while HOME holds more than limits.home_bytes are ended", "")
	if _, err := os.Stat(datadir.OtherSpelling); err == nil && path == datadir.RootDefault {
		line("spelling", false, datadir.OtherSpelling+" exists too", "it is not read; the directory in use has an e in it")
	}
	return lines
}

// lowSpace is the free space below which writes will soon fail.
const lowSpace = 1 << 30

func space(path string) sandboxd.LevelLine {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return sandboxd.LevelLine{Name: "space", Detail: err.Error()}
	}
	free := int64(fs.Bavail) * fs.Bsize
	return sandboxd.LevelLine{Name: "space", OK: free >= lowSpace, Detail: fmt.Sprintf("%d MiB free", free>>20),
		Why: "writes fail when it is full"}
}
