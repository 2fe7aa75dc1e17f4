package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"sandboxd"
	"sandboxd/internal/relay"
)

const connectDoc = `with "Upgrade: tcp" the connection carries the port's bytes after the answer 101, and each side may end its own; with "Upgrade: websocket" binary frames are the bytes, the text frame {"end":true} ends a side, and closing closes both`

type portsOutput struct {
	Body sandboxd.PortList
}

func (f *face) ports(ctx context.Context, in *SandboxPath) (*portsOutput, error) {
	h, err := f.at(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	list, err := h.ListPorts(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	list.Ports = append([]sandboxd.Port{}, list.Ports...)
	return &portsOutput{Body: list}, nil
}

// connect joins the caller's connection to a port. All that can be refused is
// refused before the upgrade, as on every other route.
func (f *face) connect(w http.ResponseWriter, r *http.Request, _ url.Values) error {
	id := r.PathValue("id")
	h, err := f.at(r.Context(), id)
	if err != nil {
		return err
	}
	port, err := strconv.ParseUint(r.PathValue("port"), 10, 16)
	if err != nil || port == 0 || strconv.FormatUint(port, 10) != r.PathValue("port") {
		return sandboxd.Invalid("port", "a number from 1 to 65535 is needed")
	}
	upgrade := upgradeTCP
	switch strings.ToLower(r.Header.Get("Upgrade")) {
	case "tcp":
	case "websocket":
		upgrade = f.upgradeWebSocket
	default:
		return sandboxd.Invalid("Upgrade", "this route needs Upgrade: tcp or Upgrade: websocket")
	}
	inside, err := h.DialPort(r.Context(), id, uint16(port))
	if err != nil {
		return err
	}
	defer inside.Close()
	outside, err := upgrade(w, r)
	if err != nil {
		note(r.Context(), err)
		return nil // it was answered, or there is nobody to answer to
	}
	// The end of the server ends what its listener no longer knows.
	defer context.AfterFunc(r.Context(), func() {
		_ = inside.Reset() // one that is closed already is what is wanted
		_ = outside.Reset()
	})()
	relay.Join(outside, inside)
	return nil
}

// peer is the caller's end of a connection to a port.
type peer interface {
	relay.Conn
	Reset() error
}

// upgradeTCP takes the connection over and answers 101. In this order: a client that
// has the answer may end its half, which until the connection is taken over counts as
// leaving and ends the request.
func upgradeTCP(w http.ResponseWriter, _ *http.Request) (peer, error) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, err
	}
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		conn.Close()
		return nil, errors.New("the listener's connections have no half close")
	}
	if rw, ok := w.(*response); ok {
		rw.status = http.StatusSwitchingProtocols
	}
	header := w.Header()
	header.Set("Connection", "Upgrade")
	header.Set("Upgrade", "tcp")
	var answer bytes.Buffer
	answer.WriteString("HTTP/1.1 101 Switching Protocols\r\n")
	_ = header.Write(&answer) // into memory
	answer.WriteString("\r\n")
	if _, err := conn.Write(answer.Bytes()); err != nil {
		conn.Close()
		return nil, err
	}
	// What a client sent before it saw the answer.
	early, err := buffered.Reader.Peek(buffered.Reader.Buffered())
	if err != nil {
		conn.Close()
		return nil, err
	}
	return &hijacked{TCPConn: tcp, early: bytes.NewReader(bytes.Clone(early))}, nil
}

// hijacked is the caller's connection.
type hijacked struct {
	*net.TCPConn
	early *bytes.Reader
}

func (h *hijacked) Read(p []byte) (int, error) {
	if h.early.Len() > 0 {
		return h.early.Read(p)
	}
	return h.TCPConn.Read(p)
}

// Reset closes with a reset instead of an end.
func (h *hijacked) Reset() error { return relay.ResetTCP(h.TCPConn) }

// Broken is relay's.
func (h *hijacked) Broken() bool { return relay.BrokenTCP(h.TCPConn) }

// upgradeWebSocket answers 101 as WebSocket has it.
func (f *face) upgradeWebSocket(w http.ResponseWriter, r *http.Request) (peer, error) {
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		return nil, err
	}
	conn.SetReadLimit(-1) // frames are passed on in parts
	s := &socket{conn: conn, done: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(r.Context()))
	go s.ping(f.pace.ping)
	return s, nil
}

// socket is a WebSocket as a connection.
type socket struct {
	conn   *websocket.Conn
	ctx    context.Context // ends with it
	cancel context.CancelFunc
	once   sync.Once
	done   chan struct{} // closed when the client has closed it, or is gone
	frame  io.Reader     // the rest of a frame that is being read
	ended  bool          // the client sends no more
}

// socketText is a text frame, either way.
type socketText struct {
	End bool `json:"end"`
}

// largestText is far above what a text frame has to say.
const largestText = 1 << 10

func (s *socket) Read(p []byte) (int, error) {
	for !s.ended {
		if s.frame != nil {
			n, err := s.frame.Read(p)
			if err == io.EOF {
				s.frame, err = nil, nil
			}
			if n > 0 || err != nil {
				return n, err
			}
			continue
		}
		kind, frame, err := s.conn.Reader(s.ctx)
		switch {
		case websocket.CloseStatus(err) == websocket.StatusNormalClosure:
			s.ended = true
			s.over()
			continue
		case err != nil:
			return 0, err
		case kind == websocket.MessageBinary:
			s.frame = frame
			continue
		}
		text, err := io.ReadAll(io.LimitReader(frame, largestText))
		var said socketText
		if err != nil || json.Unmarshal(text, &said) != nil || !said.End {
			return 0, errors.New("a text frame that says nothing known")
		}
		s.ended = true
		go s.awaitClose()
	}
	return 0, io.EOF
}

// awaitClose reads on, so that pings are answered and the closing is seen.
func (s *socket) awaitClose() {
	defer s.over()
	// A frame that comes after the end counts as closing too.
	_, _, _ = s.conn.Reader(s.ctx)
}

func (s *socket) over() { s.once.Do(func() { close(s.done) }) }

// Done is relay's.
func (s *socket) Done() <-chan struct{} { return s.done }

func (s *socket) Write(p []byte) (int, error) {
	if err := s.conn.Write(s.ctx, websocket.MessageBinary, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (s *socket) CloseWrite() error {
	return s.conn.Write(s.ctx, websocket.MessageText, []byte(`{"end":true}`))
}

func (s *socket) Close() error { return s.close(websocket.StatusNormalClosure, "") }

// Reset closes it as broken.
func (s *socket) Reset() error {
	return s.close(websocket.StatusInternalError, "the connection to the port broke")
}

func (s *socket) close(status websocket.StatusCode, why string) error {
	defer s.cancel()
	return s.conn.Close(status, why)
}

// ping keeps what lies between from closing an idle socket, and finds that the
// client is gone when nothing else would. A pong that does not come says nothing: it
// waits behind data that the program does not take.
func (s *socket) ping(every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
			ctx, cancel := context.WithTimeout(s.ctx, every)
			err := s.conn.Ping(ctx)
			cancel()
			if err != nil && !errors.Is(err, context.DeadlineExceeded) {
				s.over()
				return
			}
		}
	}
}
