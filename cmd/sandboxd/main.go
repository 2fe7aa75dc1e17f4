// Command sandboxd is the one binary of the product: the server roles and the
// command line that talks to them. It holds no logic; see internal/app.
package main

import (
	"context"
	"os"

	"sandboxd/internal/app"
)

func main() {
	os.Exit(app.Main(context.Background(), app.Process{
		Args:    os.Args[1:],
		Stdin:   os.Stdin,
		Stdout:  os.Stdout,
		Stderr:  os.Stderr,
		Environ: os.Environ(),
	}))
}
