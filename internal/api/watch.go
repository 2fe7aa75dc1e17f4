package api

import (
	"context"
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
	startStream(w, eventStream)
	out := &batch{w: w}
	out.event("ready", struct{}{})
	beat := time.NewTimer(f.pace.heartbeat)
	defer beat.Stop()
	for {
		if err := out.send(); err != nil {
			return err
		}
		beat.Reset(f.pace.heartbeat)
		select {
		case n, open := <-news:
			if !open {
				return ctx.Err()
			}
			for _, event := range n.events {
				out.event(string(event.Kind), sandboxd.ChangeOf(event))
			}
			if n.err != nil {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				note(r.Context(), n.err)
				out.event("error", envelope(n.err).Err)
				return out.send()
			}
		case <-beat.C:
			out.WriteString(": beat\n\n")
		}
	}
}
