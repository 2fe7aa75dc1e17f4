package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// wire is a kept HTTP connection that does no more than it must: with Go's own
// client its goroutines, a tenth of a millisecond a request, would be in every
// sample.
type wire struct {
	conn net.Conn
	r    *bufio.Reader
	head string // of every request, from its path to the length of its body
}

func (b *bench) wire() (*wire, error) {
	conn, err := net.Dial("tcp", b.addr)
	if err != nil {
		return nil, err
	}
	head := fmt.Sprintf(" HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: ", b.addr, b.token)
	return &wire{conn: conn, r: bufio.NewReader(conn), head: head}, nil
}

func (w *wire) close() { w.conn.Close() }

// post answers the body of a 2xx.
func (w *wire) post(path, body string) ([]byte, error) {
	if _, err := fmt.Fprintf(w.conn, "POST %s%s%d\r\n\r\n%s", path, w.head, len(body), body); err != nil {
		return nil, err
	}
	resp, err := http.ReadResponse(w.r, nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode/100 != 2 {
		err = fmt.Errorf("%d %s", resp.StatusCode, raw)
	}
	return raw, err
}

var wentWell = []byte(`"cause":"exit"`)

// true runs /bin/true in a sandbox and looks at its ending.
func (w *wire) true(id string) error {
	raw, err := w.post("/v1/sandboxes/"+id+"/exec", `{"argv":["/bin/true"]}`)
	if err == nil && !bytes.Contains(raw, wentWell) {
		err = fmt.Errorf("ended with %s", raw)
	}
	return err
}

// first opens a sandbox and waits for the result of its first command: id is the
// sandbox, also when the command failed.
func (w *wire) first(body string) (ms float64, id string, err error) {
	t := time.Now()
	raw, err := w.post("/v1/sandboxes", body)
	if err != nil {
		return 0, "", err
	}
	var sb struct {
		ID string `json:"id"`
	}
	if err := json.Unmarshal(raw, &sb); err != nil {
		return 0, "", err
	}
	err = w.true(sb.ID)
	return millis(time.Since(t)), sb.ID, err
}
