package api

import (
	"bytes"
	"encoding/json"
	"net/http"

	"sandboxd"
)

// batch collects what is streamed and sends it at once.
type batch struct {
	w http.ResponseWriter
	bytes.Buffer
}

// startStream says what is streamed, before its first byte.
func startStream(w http.ResponseWriter, kind string) {
	h := w.Header()
	h.Set("Content-Type", kind)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
}

// line adds a value as JSON and ends the line.
func (b *batch) line(v any) {
	enc := json.NewEncoder(b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v)
}

// event adds a server-sent event.
func (b *batch) event(name string, data any) {
	b.WriteString("event: " + name + "\ndata: ")
	b.line(data)
	b.WriteString("\n")
}

func (b *batch) send() error {
	_, err := b.w.Write(b.Bytes())
	b.Reset()
	if err == nil {
		err = http.NewResponseController(b.w).Flush()
	}
	if err != nil {
		return sandboxd.Wrap(sandboxd.ClassUnavailable, err, "the client went away")
	}
	return nil
}
