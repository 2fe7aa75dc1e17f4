package docker

import (
	"context"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/client"
)

// A socket that others may open is not an engine that is stopped, and starting it is no help.
func TestClosedSocketIsNamed(t *testing.T) {
	for refusal, want := range map[error][2]string{
		syscall.EACCES:       {"not open to this user", "group"},
		syscall.ECONNREFUSED: {"cannot be reached", "start it"},
	} {
		dial := func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Net: "unix", Err: refusal}
		}
		api, err := client.New(client.WithHost("unix:///none.sock"), client.WithDialContext(dial))
		if err != nil {
			t.Fatal(err)
		}
		d := &Driver{engine: &engine{api: api, where: "unix:///none.sock", limit: time.Minute}}
		fp := d.Fingerprint(t.Context())
		if fp.Works || !strings.Contains(fp.Reason, want[0]) || !strings.Contains(fp.Hint, want[1]) || fp.Level[0].Why != fp.Hint {
			t.Errorf("%v: %+v", refusal, fp)
		}
	}
}
