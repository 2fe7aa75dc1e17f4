package relay

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// pair is two ends of one TCP connection.
func pair(t *testing.T) (a, b *net.TCPConn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	dialled, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dialled.Close(); accepted.Close() })
	deadline := time.Now().Add(20 * time.Second)
	for _, c := range []net.Conn{dialled, accepted} {
		if err := c.SetDeadline(deadline); err != nil {
			t.Fatal(err)
		}
	}
	return dialled.(*net.TCPConn), accepted.(*net.TCPConn)
}

// joined is two clients with a relay between them, and its end.
func joined(t *testing.T) (left, right *net.TCPConn, over chan struct{}) {
	left, a := pair(t)
	b, right := pair(t)
	over = make(chan struct{})
	go func() {
		defer close(over)
		Join(a, b)
	}()
	return left, right, over
}

func TestBytesAndHalfCloses(t *testing.T) {
	left, right, over := joined(t)
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	var sides sync.WaitGroup
	for _, side := range []*net.TCPConn{left, right} {
		sides.Go(func() {
			if _, err := side.Write(data); err != nil {
				t.Error(err)
			}
			if err := side.CloseWrite(); err != nil {
				t.Error(err)
			}
		})
		sides.Go(func() {
			if got, err := io.ReadAll(side); err != nil || !bytes.Equal(got, data) {
				t.Errorf("%d bytes, %v", len(got), err)
			}
		})
	}
	sides.Wait()
	<-over
}

// TestOneEndsLongBeforeTheOther shows that the half that goes on is whole.
func TestOneEndsLongBeforeTheOther(t *testing.T) {
	left, right, over := joined(t)
	if err := left.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(right); err != nil || len(got) != 0 {
		t.Fatalf("%q, %v", got, err)
	}
	for range 10 {
		if _, err := io.WriteString(right, "still here"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(left, make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
	}
	right.Close()
	<-over
	if _, err := io.ReadAll(left); err != nil {
		t.Fatal(err)
	}
}

// TestAResetIsNoEnd shows that data which was cut short is not taken for the whole.
func TestAResetIsNoEnd(t *testing.T) {
	left, right, over := joined(t)
	if _, err := io.WriteString(left, "half of"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(right, make([]byte, 7)); err != nil {
		t.Fatal(err)
	}
	if err := left.SetLinger(0); err != nil {
		t.Fatal(err)
	}
	left.Close()
	if _, err := io.ReadAll(right); !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("a reset arrives as %v", err)
	}
	<-over
}

// half is one end of a pair in memory, for a clock of the test's own.
type half struct {
	io.Reader
	io.WriteCloser
	done chan struct{}
}

func (h half) CloseWrite() error { return h.WriteCloser.Close() }
func (h half) Close() error {
	h.Reader.(io.Closer).Close()
	return h.WriteCloser.Close()
}
func (h half) Done() <-chan struct{} { return h.done }

func halves() (a, b half) {
	r1, w1 := io.Pipe()
	r2, w2 := io.Pipe()
	return half{r1, w2, nil}, half{r2, w1, nil}
}

// TestBrokenWhileNothingMoves has a client that is gone while the program takes
// nothing of what it sent, and one that is gone after it ended its half.
func TestBrokenWhileNothingMoves(t *testing.T) {
	for name, leave := range map[string]func(t *testing.T, client *net.TCPConn){
		"data is waiting": func(t *testing.T, client *net.TCPConn) {
			_ = client.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
			for { // until every buffer on the way is full
				if _, err := client.Write(make([]byte, 1<<20)); err != nil {
					return
				}
			}
		},
		"half closed": func(t *testing.T, client *net.TCPConn) {
			if err := client.CloseWrite(); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			client, a := pair(t)
			b, program := pair(t)
			over := make(chan struct{})
			go func() {
				defer close(over)
				join(a, b, 20*time.Millisecond)
			}()
			leave(t, client)
			_ = ResetTCP(client)
			<-over
			// What it reads is a reset, unless the end of the half came first.
			if _, err := io.Copy(io.Discard, program); !errors.Is(err, syscall.ECONNRESET) && (err != nil || name != "half closed") {
				t.Fatalf("the program reads %v", err)
			}
			var err error
			for err == nil { // until the reset is there
				_, err = program.Write([]byte("x"))
			}
			if !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
				t.Fatalf("the program's write: %v", err)
			}
		})
	}
}

// TestGoneAndNotTaken has a source that gave up as a whole, and a program that does
// not take its last bytes.
func TestGoneAndNotTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, a := halves()
		a.done = make(chan struct{})
		b, _ := halves() // nobody reads the other end
		over := make(chan struct{})
		go func() {
			defer close(over)
			Join(a, b)
		}()
		if _, err := io.WriteString(client, "last words"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		began := time.Now()
		client.Close()
		close(a.done)
		<-over
		if took := time.Since(began); took < linger || took > 2*linger {
			t.Fatalf("it ended after %v", took)
		}
	})
}

// TestGoneAfterItsEnd has a source that ended its half, and then gave up as a whole:
// the other half has no reader any more.
func TestGoneAfterItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, a := halves()
		a.done = make(chan struct{})
		b, program := halves()
		over := make(chan struct{})
		go func() {
			defer close(over)
			Join(a, b)
		}()
		if err := client.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(program); err != nil {
			t.Fatal(err)
		}
		close(a.done)
		<-over
		if _, err := io.WriteString(program, "x"); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("the program still writes: %v", err)
		}
	})
}
