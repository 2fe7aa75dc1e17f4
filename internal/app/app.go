// Package app composes a role of the program from its parts: what `sandboxd
// serve`, `sandboxd doctor` and `sandboxd selftest` are made of, in which order it
// is opened, and that it is closed in reverse. It decides nothing about a sandbox.
package app

import (
	"context"
	"runtime"
	"runtime/debug"

	"sandboxd/internal/cli"
	"sandboxd/internal/pdftext"
)

// Process is what the program gets from its caller.
type Process = cli.Process

// Version is set at build time with -ldflags "-X sandboxd/internal/app.Version=...".
var Version = "dev"

// Main runs one command line and returns the exit code.
func Main(ctx context.Context, p Process) int {
	if len(p.Args) > 0 && p.Args[0] == pdftext.Argument {
		pdftext.Main() // for a server, which does not parse such files itself
	}
	return cli.Main(ctx, p, cli.Roles{Version: version, Serve: serve, Host: serveHost, Doctor: doctor, Selftest: runSelftest, Prepare: prepare,
		CheckRuntimes: checkRuntimes, PrintRuntimes: printRuntimes})
}

func version() cli.Version {
	v := cli.Version{Version: Version, Go: runtime.Version()}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				v.Commit = s.Value[:min(12, len(s.Value))]
			}
		}
	}
	return v
}
