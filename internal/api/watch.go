package api

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"time"

	"sandboxd"
)

const watchDoc = `server-sent events. First ready: what happens from now on is told. Then changed with {"kind","entry"}, removed with {"kind","path"}, and resync when more happened than was kept: look at everything again. A last error has the envelope's error, of code gone when the directory or the sandbox was removed. Comment lines keep an idle stream alive`

const eventStream = "text/event-stream"

// watched is what one Next answered.
type watched struct {
	events []sandboxd.WatchEvent
	err    error
}

func (f *face) watch(w http.ResponseWriter, r *http.Request, query url.Values) error {
	files, name, err := f.filesOf(r, query)
	if err != nil {
		return err
	}
	if r.Method == http.MethodHead {
		w.Header().Set("Content-Type", eventStream)
		return nil
	}
	watcher, err := files.Watch(r.Context(), name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(r.Context())
	news := make(chan watched)
	go func() {
		defer close(news)
		for {
			events, err := watcher.Next(ctx)
			select {
			case news <- watched{events, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	defer func() {
		cancel()
		for range news { // the reader lets go of the watcher before it is closed
		}
		_ = watcher.Close()
	}()
	h := w.Header()
	h.Set("Content-Type", eventStream)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
	s := &eventWriter{w: w}
	s.add("ready", struct{}{})
	beat := time.NewTimer(f.pace.heartbeat)
	defer beat.Stop()
	for {
		if err := s.send(); err != nil {
			return err
		}
		beat.Reset(f.pace.heartbeat)
		select {
		case n, open := <-news:
			if !open {
				return ctx.Err()
			}
			for _, event := range n.events {
				s.add(string(event.Kind), sandboxd.ChangeOf(event))
			}
			if n.err != nil {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				note(r.Context(), n.err)
				s.add("error", envelope(n.err).Err)
				return s.send()
			}
		case <-beat.C:
			s.buf.WriteString(": beat\n\n")
		}
	}
}

// eventWriter collects events and sends them at once.
type eventWriter struct {
	w   http.ResponseWriter
	buf bytes.Buffer
}

func (s *eventWriter) add(name string, data any) {
	s.buf.WriteString("event: " + name + "\ndata: ")
	enc := json.NewEncoder(&s.buf)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(data) // ends the line
	s.buf.WriteString("\n")
}

func (s *eventWriter) send() error {
	_, err := s.w.Write(s.buf.Bytes())
	s.buf.Reset()
	if err == nil {
		err = http.NewResponseController(s.w).Flush()
	}
	if err != nil {
		return sandboxd.Wrap(sandboxd.ClassUnavailable, err, "the client went away")
	}
	return nil
}
