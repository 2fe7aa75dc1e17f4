package pressure

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"sandboxd"
)

// Calls makes the cheap calls of the API again and again, on one kept connection
// that does no more than it must, so that the caller is not what is measured. It is
// for one goroutine.
type Calls struct {
	addr, key string
	conn      net.Conn
	r         *bufio.Reader
	each      []call
}

type call struct {
	text []byte // the request
	want []byte // in its answer
	exec bool   // it runs something in the neighbour
}

// Small is the file that is read in the quiet sandbox, and its content.
const Small = "small"

// NewCalls connects to addr, with the secret that it wants. The file Small is
// written into the quiet sandbox, whose files are given.
func NewCalls(ctx context.Context, addr, key, quiet string, files sandboxd.Files) (*Calls, error) {
	if _, err := files.Write(ctx, Small, strings.NewReader(Small), sandboxd.WriteOptions{Size: -1}); err != nil {
		return nil, err
	}
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	c := &Calls{addr: addr, key: key, conn: conn, r: bufio.NewReader(conn)}
	box := "/v1/sandboxes/" + quiet
	c.each = []call{
		{text: c.text("GET", "/healthz", ""), want: []byte("ok")},
		{text: c.text("GET", "/v1/sandboxes", ""), want: []byte(quiet)},
		{text: c.text("GET", box+"/files/content?path="+Small, ""), want: []byte(Small)},
		{text: c.text("POST", box+"/exec", `{"argv":["/bin/true"]}`), want: []byte(`"cause":"exit"`), exec: true},
	}
	return c, nil
}

// text is a request as it is written.
func (c *Calls) text(method, path, body string) []byte {
	return fmt.Appendf(nil, "%s %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		method, path, c.addr, c.key, len(body), body)
}

// Close ends the connection.
func (c *Calls) Close() { c.conn.Close() }

// Times are milliseconds that calls took, sorted: those that the server answers
// itself, and those that run a command in the quiet sandbox.
type Times struct{ API, Exec []float64 }

// P99 of sorted times.
func P99(sorted []float64) float64 { return sorted[len(sorted)*99/100] }

// Round makes the calls in turn for so long, and each 30 times at least.
func (c *Calls) Round(d time.Duration) (t Times, err error) {
	for began := time.Now(); time.Since(began) < d || len(t.Exec) < 30; {
		for _, one := range c.each {
			start := time.Now()
			if err := c.do(one); err != nil {
				return t, err
			}
			took := float64(time.Since(start)) / float64(time.Millisecond)
			if one.exec {
				t.Exec = append(t.Exec, took)
			} else {
				t.API = append(t.API, took)
			}
		}
	}
	slices.Sort(t.API)
	slices.Sort(t.Exec)
	return t, nil
}

func (c *Calls) do(one call) error {
	if _, err := c.conn.Write(one.text); err != nil {
		return err
	}
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && (resp.StatusCode != http.StatusOK || !bytes.Contains(body, one.want)) {
		err = fmt.Errorf("%.40q was answered with %d %s", one.text, resp.StatusCode, body)
	}
	return err
}
