package wire

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"
)

func encoded(t testing.TB, f Frame) []byte {
	b, err := Append(nil, f)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestFrameRoundTrip(t *testing.T) {
	want := Frame{Nonce: 1 << 63, Type: TypeOutput, Flags: 2, Number: 7, Arg: 1 << 40, Payload: bytes.Repeat([]byte("x"), MaxPayload)}
	b := encoded(t, want)
	if len(b) != MaxFrame {
		t.Fatalf("the largest frame has %d bytes", len(b))
	}
	for _, r := range []io.Reader{bytes.NewReader(b), iotest.OneByteReader(bytes.NewReader(b)), iotest.DataErrReader(bytes.NewReader(b))} {
		got, err := NewReader(r).Next()
		if err != nil || got.Nonce != want.Nonce || got.Type != want.Type || got.Flags != want.Flags || got.Number != want.Number ||
			got.Arg != want.Arg || !bytes.Equal(got.Payload, want.Payload) {
			t.Fatalf("%+v %v", got.Type, err)
		}
	}
	if _, err := Append(nil, Frame{Payload: make([]byte, MaxPayload+1)}); !errors.Is(err, ErrTooLarge) {
		t.Fatalf("too large a payload: %v", err)
	}
}

// TestResync cuts a frame at every length and puts zeros and whole frames behind:
// those are found, and the cut one is not.
func TestResync(t *testing.T) {
	dead := encoded(t, Frame{Nonce: 1, Type: TypeStdin, Number: 1, Payload: []byte("of a dead host")})
	alive := encoded(t, Frame{Nonce: 2, Type: TypeSync, Payload: []byte("{}")})
	for cut := range len(dead) {
		stream := append(append(append([]byte{}, dead[:cut]...), make([]byte, MaxFrame+HeaderSize)...), alive...)
		r := NewReader(bytes.NewReader(stream))
		f, err := r.Next()
		if err != nil || f.Nonce != 2 || f.Type != TypeSync {
			t.Fatalf("cut at %d: %+v %v", cut, f, err)
		}
		if want := int64(len(stream) - len(alive)); r.Skipped() != want {
			t.Fatalf("cut at %d: %d bytes skipped, not %d", cut, r.Skipped(), want)
		}
	}
}

// TestFlippedBit shows that every bit of a frame is covered.
func TestFlippedBit(t *testing.T) {
	whole := encoded(t, Frame{Nonce: 3, Type: TypeAck, Number: 9, Arg: 77, Payload: []byte("payload")})
	for i := range len(whole) * 8 {
		b := bytes.Clone(whole)
		b[i/8] ^= 1 << (i % 8)
		if f, err := NewReader(bytes.NewReader(b)).Next(); err == nil {
			t.Fatalf("bit %d flipped and still a frame: %+v", i, f)
		}
	}
}

func TestVersionAndProof(t *testing.T) {
	for _, c := range [][5]int{{1, 3, 2, 5, 3}, {1, 1, 1, 1, 1}, {1, 1, 2, 3, 0}, {4, 5, 1, 3, 0}, {0, 0, 0, 0, 0}} {
		if got := Version(c[0], c[1], c[2], c[3]); got != c[4] {
			t.Errorf("%v: %d", c, got)
		}
	}
	proof := Proof("s", SideHost, 5)
	if !Proves(proof, "s", SideHost, 5) || Proves(proof, "s", SideInit, 5) || Proves(proof, "s", SideHost, 6) || Proves(nil, "s", SideHost, 5) || Proves(proof, "t", SideHost, 5) {
		t.Error("a proof is good for one secret, side and link")
	}
	if !Proves(nil, "", SideInit, 5) {
		t.Error("without a secret everything proves it")
	}
}

// FuzzFrames reads any bytes: no panic, no endless loop, and every frame that is
// found encodes to bytes that are in the stream.
func FuzzFrames(f *testing.F) {
	whole := encoded(f, Frame{Nonce: 3, Type: TypeOutput, Number: 9, Arg: 77, Payload: []byte("payload")})
	f.Add(whole)
	f.Add(append([]byte("HALF-A-FRAM"), whole...))
	f.Add(append(bytes.Clone(whole[:20]), whole...))
	f.Add(make([]byte, 100))
	f.Add(bytes.Repeat(magic[:], 50))
	f.Fuzz(func(t *testing.T, stream []byte) {
		r := NewReader(bytes.NewReader(stream))
		for {
			got, err := r.Next()
			if err != nil {
				break
			}
			if !bytes.Contains(stream, encoded(t, got)) {
				t.Fatalf("a frame that is not in the stream: %+v", got)
			}
		}
	})
}
