package inside

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"sandboxd/internal/guest/wire"
	"sandboxd/internal/relay"
)

const (
	// maxListen bounds the ports of this end.
	maxListen = 8
	// hostAway is how long a connection waits for a host that is being replaced.
	hostAway = 30 * time.Second
)

func listenLoopback(port uint16) (net.Listener, error) {
	return net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
}

// listen takes the ports that a host names and does not have yet. Each outlives
// the link: before the first command runs it is this end's, and nobody else in the
// sandbox can take it.
func (s *Server) listen(services map[string]uint16) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for service, port := range services {
		if s.closed {
			return ErrClosed
		}
		if s.ports[port] != nil {
			continue
		}
		if port == 0 || len(s.ports) >= maxListen {
			return fmt.Errorf("port %d cannot be listened on for %.32q", port, service)
		}
		l, err := s.opts.Listen(port)
		if err != nil {
			return fmt.Errorf("port %d of the sandbox, for %.32q: %w", port, service, err)
		}
		s.ports[port] = l
		go s.offer(l, service)
	}
	return nil
}

// offer makes a stream to a service of every connection. Those beyond the bound
// wait in the kernel.
func (s *Server) offer(l net.Listener, service string) {
	places := make(chan struct{}, wire.MaxServices)
	for {
		places <- struct{}{}
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// Descriptors or memory are short; the next try must not be at once.
			<-time.After(50 * time.Millisecond)
			<-places
			continue
		}
		go func() {
			defer func() { <-places }()
			ctx, cancel := context.WithTimeout(context.Background(), hostAway)
			st, err := s.OpenService(ctx, service)
			cancel()
			if err != nil {
				conn.Close()
				return
			}
			half, ok := conn.(relay.Conn)
			if !ok {
				conn.Close()
				st.Close()
				return
			}
			relay.Join(st, half)
		}()
	}
}
