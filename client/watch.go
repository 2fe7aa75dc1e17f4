package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"sync"

	"sandboxd"
)

// Watch implements sandboxd.Files.
func (f *files) Watch(ctx context.Context, path string) (sandboxd.Watcher, error) {
	in := f.call(http.MethodGet, path, "watch")
	in.header = http.Header{"Accept": {"text/event-stream"}}
	// The stream outlives ctx, which is that of the beginning only.
	stream, cancel := context.WithCancel(context.WithoutCancel(ctx))
	given := context.AfterFunc(ctx, cancel)
	res, err := f.c.do(stream, in)
	if err != nil {
		cancel()
		if ctx.Err() != nil {
			err = f.c.unreachable(ctx, err)
		}
		return nil, err
	}
	w := &watcher{files: f, cancel: cancel, body: res.Body, news: make(chan told, 256), closed: make(chan struct{})}
	go w.read()
	select {
	case first := <-w.news: // ready
		err = first.err
	case <-ctx.Done():
		err = f.c.unreachable(ctx, ctx.Err())
	}
	if !given() && err == nil {
		err = f.c.unreachable(ctx, ctx.Err())
	}
	if err != nil {
		_ = w.Close()
		return nil, err
	}
	return w, nil
}

// told is one event of the stream, or how it ended.
type told struct {
	event sandboxd.WatchEvent
	err   error
}

// watcher is a watch over HTTP.
type watcher struct {
	files  *files
	cancel context.CancelFunc
	body   io.ReadCloser
	news   chan told
	closed chan struct{}
	once   sync.Once
	err    error // the stream is over
}

// read passes events on until the stream is over.
func (w *watcher) read() {
	defer w.body.Close()
	r := bufio.NewReaderSize(w.body, 64<<10)
	for {
		one, err := nextEvent(r)
		if err != nil {
			one.err = sandboxd.Wrap(sandboxd.ClassUnavailable, err, "the watch broke off")
		}
		select {
		case w.news <- one:
		case <-w.closed:
			return
		}
		if one.err != nil {
			return
		}
	}
}

// nextEvent reads one event of a stream of server-sent events, as this API writes
// them: a name and one line of data.
func nextEvent(r *bufio.Reader) (told, error) {
	name, data := "", []byte(nil)
	l := lines{r: r}
	for {
		line, err := l.line()
		if err != nil {
			return told{}, err
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "event":
			name = string(value)
		case "data":
			data = bytes.Clone(value)
		}
		if len(line) > 0 || data == nil {
			continue
		}
		if name == "error" {
			var wire wireError
			if err := json.Unmarshal(data, &wire); err != nil {
				return told{}, err
			}
			return told{err: wire.error(0)}, nil
		}
		var change sandboxd.ChangeEntry
		if err := json.Unmarshal(data, &change); err != nil {
			return told{}, err
		}
		return told{event: change.Event()}, nil
	}
}

// Next implements sandboxd.Watcher.
func (w *watcher) Next(ctx context.Context) ([]sandboxd.WatchEvent, error) {
	if w.err != nil {
		return nil, w.err
	}
	var events []sandboxd.WatchEvent
	take := func(one told) {
		if w.err = one.err; w.err == nil {
			events = append(events, one.event)
		}
	}
	select {
	case one := <-w.news:
		take(one)
	case <-w.closed:
		w.err = sandboxd.Errorf(sandboxd.ClassGone, "the watcher was closed")
	case <-ctx.Done():
		return nil, w.files.c.unreachable(ctx, ctx.Err())
	}
	for more := true; more && w.err == nil; {
		select {
		case one := <-w.news:
			take(one)
		default:
			more = false
		}
	}
	if len(events) > 0 {
		return events, nil
	}
	return nil, w.err
}

// Close implements sandboxd.Watcher.
func (w *watcher) Close() error {
	w.once.Do(func() {
		close(w.closed)
		w.cancel()
	})
	return nil
}
