package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
)

// wire is a kept HTTP connection that does no more than it must: with Go's own
// client its goroutines, a tenth of a millisecond a request, would be in every
// sample.
type wire struct {
	conn net.Conn
	r    *bufio.Reader
	head []byte // of every request, up to the length of its body
}

func (b *bench) wire(path string) (*wire, error) {
	conn, err := net.Dial("tcp", b.addr)
	if err != nil {
		return nil, err
	}
	head := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: ", path, b.addr, b.token)
	return &wire{conn: conn, r: bufio.NewReader(conn), head: []byte(head)}, nil
}

func (w *wire) close() { w.conn.Close() }

// post answers the body of a 2xx.
func (w *wire) post(body []byte) ([]byte, error) {
	if _, err := w.conn.Write(fmt.Appendf(w.head[:len(w.head):len(w.head)], "%d\r\n\r\n%s", len(body), body)); err != nil {
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

var (
	trueBody = []byte(`{"argv":["/bin/true"]}`)
	wentWell = []byte(`"cause":"exit"`)
)

// true runs /bin/true and looks at its ending.
func (w *wire) true() error {
	raw, err := w.post(trueBody)
	if err == nil && !bytes.Contains(raw, wentWell) {
		err = fmt.Errorf("ended with %s", raw)
	}
	return err
}

// execTrue does so once, on a connection of its own.
func (b *bench) execTrue(id string) error {
	w, err := b.wire("/v1/sandboxes/" + id + "/exec")
	if err != nil {
		return err
	}
	defer w.close()
	return w.true()
}
